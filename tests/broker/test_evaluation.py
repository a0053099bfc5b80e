"""An evaluation covers its whole split, at temperature 0, with seeds that match between programs."""

import asyncio
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.attempt import task_seed
from broker.evaluation import CoverageError, Evaluation, evaluate, outcome, summarise
from broker.harness import Harness
from broker.model import Sampling
from broker.record import GradedEpisode
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, make_broker, release, right_answer

HARNESS = Harness(code=ASK_AND_SUBMIT)
LETTERS_RIGHT = {
    task.prompt: right_answer(task) for task in release().tasks if task.answer_format == "letter"
}


def knows_letters(prompt: str, sampling: Sampling) -> str:
    return next((answer for asked, answer in LETTERS_RIGHT.items() if asked in prompt), "I do not know.")


@pytest.mark.spec("SEL-03", "SEL-04", "REP-01")
async def test_every_task_of_the_split_has_one_outcome_and_the_denominator_is_the_split() -> None:
    seen: list[Any] = []
    broker = make_broker(ScriptedModel(policy=knows_letters))
    evaluation, episodes = await evaluate(broker, HARNESS, "train", seed=5, progress=seen.append)
    tasks = release().split("train")
    letters = sum(task.answer_format == "letter" for task in tasks)
    assert [row.task_id for row in evaluation.outcomes] == [task.id for task in tasks]
    assert (evaluation.correct, evaluation.valid, evaluation.total) == (letters, letters, len(tasks))
    assert evaluation.accuracy == letters / len(tasks)
    assert evaluation.errors == 0
    assert (evaluation.harness, evaluation.split, evaluation.seed) == (HARNESS.digest, "train", 5)
    assert len(seen) == len(episodes) == len(tasks)
    assert {episode.record.mode for episode in episodes} == {"evaluation"}
    assert Evaluation.model_validate_json(evaluation.model_dump_json()) == evaluation


@pytest.mark.spec("SEL-03")
async def test_all_programs_get_temperature_0_and_the_same_seed_on_the_same_task() -> None:
    used: list[set[tuple[str, int, float]]] = []
    for code in (ASK_AND_SUBMIT, ASK_AND_SUBMIT + "# another program\n"):
        model = ScriptedModel("<answer>x</answer>")
        await evaluate(make_broker(model), Harness(code=code), "val", seed=5)
        used.append(
            {
                (prompt, s.seed, s.temperature)
                for prompt, s in zip(model.prompts, model.samplings, strict=True)
            }
        )
    assert used[0] == used[1]
    assert {seed for _, seed, _ in used[0]} == {task_seed(5, task.id) for task in release().split("val")}
    assert {temperature for _, _, temperature in used[0]} == {0.0}


@pytest.mark.spec("SEL-04")
async def test_anything_but_complete_coverage_is_an_error() -> None:
    tasks = release().split("val")
    _, episodes = await evaluate(make_broker(ScriptedModel("x")), HARNESS, "val", seed=0)
    for spoilt, words in (
        (episodes[1:], f"missing .'{tasks[0].id}'"),
        ([*episodes, episodes[0]], f"too many .'{tasks[0].id}'"),
        ([*episodes[1:], episodes[1]], f"missing .'{tasks[0].id}'.*too many .'{tasks[1].id}'"),
        ([], "0 episodes for"),
    ):
        with pytest.raises(CoverageError, match=words):
            summarise(HARNESS, "val", tasks, spoilt, seed=0)
    whole = summarise(HARNESS, "val", tasks, list(reversed(episodes)), seed=0)
    with pytest.raises(ValidationError):
        Evaluation(harness="h", split="val", seed=0, outcomes=(*whole.outcomes, whole.outcomes[0]))


@pytest.mark.spec("SEL-04")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=6))
def test_t16_a_score_exists_for_every_task_exactly_once_or_not_at_all(places: list[int]) -> None:
    tasks, episodes = release().split("val"), whole_val()
    assert len(tasks) == 4
    some = [episodes[place] for place in places]
    if sorted(places) == [0, 1, 2, 3]:
        assert summarise(HARNESS, "val", tasks, some, seed=0).total == len(tasks)
    else:
        with pytest.raises(CoverageError, match=f"{len(some)} episodes for 4 tasks, which gives no score"):
            summarise(HARNESS, "val", tasks, some, seed=0)


@functools.cache
def whole_val() -> list[GradedEpisode]:
    return asyncio.run(evaluate(make_broker(ScriptedModel("x")), HARNESS, "val", seed=0))[1]


@pytest.mark.spec("SEL-04", "SEL-07")
async def test_t16_a_killed_evaluation_leaves_no_score_and_its_rerun_covers_the_whole_split() -> None:
    seen: list[GradedEpisode] = []
    enough = asyncio.Event()

    def count(episode: GradedEpisode) -> None:
        seen.append(episode)
        enough.set()

    model = ScriptedModel("x")
    running = asyncio.ensure_future(
        evaluate(make_broker(model, limit=1), HARNESS, "test", seed=0, progress=count)
    )
    await enough.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    tasks = release().split("test")
    assert 0 < len(seen) < len(tasks)
    with pytest.raises(CoverageError):
        summarise(HARNESS, "test", tasks, seen, seed=0)
    again, _ = await evaluate(make_broker(model), HARNESS, "test", seed=0)
    assert again.total == len(tasks)


@pytest.mark.spec("SEL-08")
async def test_crashes_count_as_errors_and_exhausted_budgets_do_not() -> None:
    crash = Harness(code="def run(task, api):\n    1 / 0\n")
    evaluation, _ = await evaluate(make_broker(ScriptedModel("x")), crash, "val", seed=0)
    assert evaluation.errors == evaluation.total
    assert (evaluation.outcomes[0].error or "").startswith("crash: ")
    forever = Harness(
        code="def run(task, api):\n    while 1:\n"
        "        api.generate([{'role': 'user', 'content': task['prompt']}])\n        api.execute('1/0')\n"
    )
    evaluation, episodes = await evaluate(
        make_broker(ScriptedModel("x"), model_calls=2), forever, "val", seed=0
    )
    assert (evaluation.errors, evaluation.correct, evaluation.valid) == (0, 0, 0)
    row = outcome(release().task(episodes[0].record.task_id), episodes[0])
    assert (row.stop_reason, row.model_calls, row.tool_calls, row.tool_errors) == (
        "model_call_budget",
        2,
        2,
        2,
    )
    assert not row.submitted
