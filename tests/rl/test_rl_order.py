import pytest

from rl.errors import TrainingError
from rl.order import draw_batch, training_order, training_tasks
from tests.fixtures.episodes import release
from verifier.release import BUNDLED, Release


@pytest.mark.spec("RL-03")
def test_the_rl_index_of_every_bundled_release_is_disjoint_from_val_and_test() -> None:
    for folder in [path.parent for path in BUNDLED.glob("*/release.json")]:
        loaded = Release.load(folder, verify=False)
        trained = {task.id for task in training_tasks(loaded)}
        held_out = {task.id for task in loaded.tasks if task.split != "train"}
        assert trained
        assert held_out
        assert not trained & held_out


def test_the_order_depends_on_the_seed_and_the_ids_only() -> None:
    tasks = release().split("train")
    assert training_order(1, tasks) == training_order(1, tasks[::-1])
    assert training_order(1, tasks) != training_order(2, tasks)
    assert set(training_order(1, tasks)) == set(tasks)


def test_a_batch_wraps_at_the_end_and_never_holds_a_task_twice() -> None:
    order = training_order(1, release().split("train"))
    size = len(order)
    assert draw_batch(order, size - 1, 2) == (order[-1], order[0])
    assert len(set(draw_batch(order, 3, size))) == size
    with pytest.raises(TrainingError, match="prompts_per_batch"):
        draw_batch(order, 0, size + 1)
