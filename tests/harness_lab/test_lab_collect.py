"""Interactions are collected on Train at temperature 1; verdicts stay apart from what proposals see."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from test_lab_feedback import TWO_TRIES, Broken

from broker.errors import ModelUnavailable
from broker.harness import Harness
from broker.record import GradedEpisode
from harness_lab.auxiliary import InterpretationRequest, RuleAuxiliary
from harness_lab.collect import collect
from harness_lab.words import HOLDS_HELD_OUT
from tests.fixtures.episodes import ScriptedModel, make_broker, release

TRAIN = release().split("train")
HARNESS = Harness(code=TWO_TRIES)


@pytest.mark.spec("FB-01", "EVID-01")
async def test_each_task_gives_an_annotated_interaction_in_order() -> None:
    model, seen = ScriptedModel("no tags"), list[GradedEpisode]()
    found = await collect(make_broker(model), HARNESS, TRAIN[:3], RuleAuxiliary(), 1, seen.append)
    assert [item.task.id for item in found.interactions] == [task.id for task in TRAIN[:3]]
    assert [len(item.given) for item in found.interactions] == [1, 1, 1]
    assert all(item.annotations and not item.dropped_annotations for item in found.interactions)
    assert {sampling.temperature for sampling in model.samplings} == {1.0}
    assert len(seen) == len(found.graded) == 3


@pytest.mark.spec("FB-06", "PROP-08")
async def test_a_failing_auxiliary_costs_the_annotation_and_nothing_else() -> None:
    found = await collect(make_broker(ScriptedModel("no tags")), HARNESS, TRAIN[:2], Broken(None), 1)
    assert [item.annotations for item in found.interactions] == [(), ()]
    assert all(item.dropped_annotations for item in found.interactions)
    assert all(item.given[0].chosen_by == "fallback" for item in found.interactions)
    assert all(item.troubled for item in found.interactions)


class Telling(RuleAuxiliary):
    """An interpreter that knows what nobody told it."""

    def __init__(self, hint: str) -> None:
        super().__init__()
        self.hint = hint

    async def interpret(self, request: InterpretationRequest) -> Mapping[str, Any]:
        return {**await super().interpret(request), "hint": self.hint}


@pytest.mark.spec("EVID-06", "FB-06")
@pytest.mark.parametrize("disguise", [str, lambda text: base64.b64encode(text.encode()).decode()])
async def test_an_annotation_that_holds_a_held_out_prompt_is_dropped_and_its_words_are_kept_nowhere(
    disguise: Callable[[str], str],
) -> None:
    secret = disguise(release().split("val")[0].prompt)
    found = await collect(make_broker(ScriptedModel("no tags")), HARNESS, TRAIN[:2], Telling(secret), 1)
    assert [item.annotations for item in found.interactions] == [(), ()]
    for item in found.interactions:
        assert item.dropped_annotations == (f"the annotation {HOLDS_HELD_OUT}",)
        assert secret not in item.model_dump_json()
    kept = await collect(
        make_broker(ScriptedModel("no tags")), HARNESS, TRAIN[:2], Telling(TRAIN[0].prompt), 1
    )
    assert all(item.annotations for item in kept.interactions), "Train words are the conversation's own"


@pytest.mark.spec("EVID-06")
async def test_what_the_record_itself_holds_an_annotation_may_repeat() -> None:
    prompt = release().split("val")[0].prompt
    found = await collect(make_broker(ScriptedModel(prompt)), HARNESS, TRAIN[:1], Telling(prompt), 1)
    assert all(item.annotations for item in found.interactions)


async def test_a_task_that_comes_twice_is_another_attempt_with_another_seed() -> None:
    model = ScriptedModel("no tags")
    found = await collect(make_broker(model), HARNESS, [TRAIN[0], TRAIN[0]], RuleAuxiliary(), 1)
    assert [item.record.repetition for item in found.interactions] == [0, 1]
    assert len({sampling.seed for sampling in model.samplings}) > 1


async def test_one_lost_attempt_is_counted_and_only_the_loss_of_all_is_raised() -> None:
    def policy(prompt: str, _: object) -> str:
        if TRAIN[0].prompt in prompt:
            raise ModelUnavailable("the engine is gone")
        return "no tags"

    broker = make_broker(ScriptedModel(policy=policy), retries=0)
    found = await collect(broker, HARNESS, TRAIN[:2], RuleAuxiliary(), 1)
    assert (len(found.interactions), len(found.lost)) == (1, 1)
    assert "the engine is gone" in found.lost[0].error
    with pytest.raises(ModelUnavailable):
        await collect(broker, HARNESS, TRAIN[:1], RuleAuxiliary(), 1)


async def test_other_splits_than_train_are_refused() -> None:
    with pytest.raises(ValueError, match="Train tasks only"):
        await collect(make_broker(ScriptedModel("x")), HARNESS, release().split("test"), RuleAuxiliary(), 1)
