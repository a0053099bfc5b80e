from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.errors import TrainingError
from rl.order import draw_batch, training_order, training_tasks
from tests.fixtures.episodes import release
from verifier.layout import SPLITS, Header
from verifier.release import BUNDLED, Release
from verifier.task import AnswerFormat, Split, Task


@pytest.mark.spec("RL-03")
def test_the_rl_index_of_every_bundled_and_test_release_is_disjoint_from_val_and_test() -> None:
    folders = [path.parent for path in BUNDLED.glob("*/release.json")]
    assert folders
    for folder in [*folders, Path(__file__).parents[1] / "fixtures" / "tiny-release", release().root]:
        loaded = Release.load(folder, verify=False)
        trained = {task.id for task in training_tasks(loaded)}
        held_out = {task.id for task in loaded.tasks if task.split != "train"}
        assert trained
        assert held_out
        assert not trained & held_out


def made_release(splits: list[tuple[str, Split]]) -> Release:
    """A release in memory, as a loaded one is: tasks sorted by id."""
    tasks = [
        Task(
            id=name, split=split, family="f", subtopic="s", material_group="g", prompt="?",
            answer_format=AnswerFormat.TEXT,
        )
        for name, split in splits
    ]  # fmt: skip
    header = Header(
        name="made",
        licence="CC0-1.0",
        sources=(),
        families={"f": ("s",)},
        counts={split: sum(task.split == split for task in tasks) for split in SPLITS},
        payload={},
    )
    return Release(Path("/nonexistent"), header, tuple(sorted(tasks, key=lambda task: task.id)))


@pytest.mark.spec("RL-03")
@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text("abc0-", min_size=1, max_size=4), st.sampled_from(SPLITS), max_size=30),
    st.integers(0, 5),
    st.integers(0, 100),
)
def test_whatever_the_release_no_update_draws_a_val_or_test_task(
    splits: dict[str, Split], seed: int, cursor: int
) -> None:
    made = made_release(list(splits.items()))
    held_out = {name for name, split in splits.items() if split != "train"}
    order = training_order(seed, training_tasks(made))
    assert {task.id for task in order} == splits.keys() - held_out
    for size in range(1, len(order) + 1):
        assert not {task.id for task in draw_batch(order, cursor, size)} & held_out


@pytest.mark.spec("RL-03")
@pytest.mark.parametrize("other", ["val", "test"])
def test_an_id_in_train_and_in_another_split_is_refused_by_the_index(other: Split) -> None:
    """No release loads so; the index does not rely on it."""
    made = made_release([("a", "train"), ("b", "train"), ("b", other), ("c", "val"), ("d", "test")])
    with pytest.raises(TrainingError, match="RL-03: Train tasks also stand in Val or Test: b"):
        training_tasks(made)


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
