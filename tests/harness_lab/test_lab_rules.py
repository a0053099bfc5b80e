"""The rule improver: evidence-triggered, three different hypotheses, general by construction."""

from typing import Any

import pytest
from lab_samples import interaction, model_call, tool_call
from rule_samples import DOUBTED, FIRST_STEP, FOCUSED, ONE_STEP_ON, ROWS, context, proposals

from broker.harness import Harness
from broker.record import StopReason, ToolCall
from harness_lab.check import check_program
from harness_lab.evidence import Interaction
from harness_lab.history import HistoryEntry, Tried
from harness_lab.improver.assemble import LOOP_ONLY, Trait, assemble, traits_of
from harness_lab.improver.base import Proposal, Skip, propose_all
from harness_lab.improver.rules import RULES, RuleImprover
from harness_lab.replies import ReplyCase
from harness_lab.seed import seed_harness


@pytest.mark.spec("PROP-01", "PROP-02", "PROP-06")
async def test_the_first_step_gives_three_different_programs_that_replace_the_seed() -> None:
    seen = context(*FIRST_STEP)
    made = await proposals(seed_harness().code, seen)
    traits = [traits_of(item.harness.code) for item in made]
    assert traits == [
        {Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP},
        {Trait.DIRECT, Trait.EXAMPLES},
        {Trait.LOOK_UP},
    ]
    assert len({item.hypothesis for item in made}) == 3
    for item in made:
        assert seen.evidence.citation_problem(item.evidence_ids) is None
        assert not check_program(item.harness.code, seed_harness().code).errors


@pytest.mark.spec("PROP-06")
async def test_without_two_tasks_to_cite_every_proposal_is_a_skip_with_a_reason() -> None:
    accepted = [interaction(f"t{n}", ReplyCase.ACCEPTED) for n in range(5)]
    for seen in (context(*accepted), context(FIRST_STEP[0])):
        found = await propose_all(RuleImprover(), seed_harness(), seen, 3)
        assert all(isinstance(item, Skip) and "two Train tasks" in item.reason for item in found)


LOOP = assemble({Trait.LOOK_UP})
OWN = (tool_call(stdout="x", after=0),)
EMPTY_LOOK_UP = (tool_call(),)


def ended(stop: StopReason, *, tools: tuple[ToolCall, ...] = (), texts: int = 1) -> list[Interaction]:
    made = [interaction(f"t{n}", tools=tools, submissions=(), stop=stop) for n in range(3)]
    calls = tuple(model_call(number) for number in range(texts))
    return [
        item.model_copy(update={"record": item.record.model_copy(update={"model_calls": calls})})
        for item in made
    ]


def after(**call: Any) -> list[Interaction]:
    """The model's own code did this, and the answer was doubted."""
    tools = (tool_call(after=0, **call),)
    return [interaction(f"t{n}", ReplyCase.RECONSIDER, tools=tools) for n in range(3)]


def cut(call: ToolCall) -> ToolCall:
    return call.model_copy(update={"output_truncated": True})


SEVERAL = [
    interaction(f"t{n}", ReplyCase.INVALID_FORMAT, submissions=("<answer>A</answer> <answer>B</answer>",))
    for n in range(3)
]
CALLED_FOR: list[tuple[Trait, str, list[Interaction]]] = [
    (Trait.EXAMPLES, seed_harness().code, FIRST_STEP),
    (Trait.LOOK_UP, seed_harness().code, FIRST_STEP),
    (Trait.FOCUS, ONE_STEP_ON, DOUBTED),
    (Trait.MORE_EXAMPLES, ONE_STEP_ON, DOUBTED),
    (Trait.REPAIR, ONE_STEP_ON, FIRST_STEP),
    (Trait.INSPECT, seed_harness().code, after(error="ZeroDivisionError: division by zero")),
    (Trait.DIRECT, seed_harness().code, ended(StopReason.OUTPUT_TRUNCATED)),
    (Trait.NOTICE, LOOP, ended(StopReason.MODEL_CALL_BUDGET, tools=OWN)),
    (Trait.NOTICE, LOOP, ended(StopReason.TOOL_CALL_BUDGET, tools=OWN)),
    (Trait.TABLES, LOOP, after(error="KeyError: 'gene'")),
    (Trait.TABLES, LOOP, after(error="FileNotFoundError: [Errno 2] No such file: '/lake/genes.csv'")),
    (Trait.PRINT, LOOP, after(stdout="\n")),
    (Trait.RECENT, LOOP, ended(StopReason.CONTEXT_BUDGET, texts=4)),
    (Trait.QUICK, LOOP, ended(StopReason.TOOL_TIMEOUT, tools=OWN)),
    (Trait.LAST_PAIR, ONE_STEP_ON, SEVERAL),
    (Trait.LAST_PAIR, LOOP, SEVERAL),
    (
        Trait.WIDE,
        ONE_STEP_ON,
        [interaction(f"t{n}", ReplyCase.RECONSIDER, tools=EMPTY_LOOK_UP) for n in range(3)],
    ),
    (
        Trait.PAGES,
        LOOP,
        [interaction(f"t{n}", ReplyCase.RECONSIDER, tools=(cut(OWN[0]),)) for n in range(3)],
    ),
]


def added_by(made: list[Proposal], parent: str) -> set[Trait]:
    had = traits_of(parent) or frozenset()
    return {trait for item in made for trait in (traits_of(item.harness.code) or frozenset()) - had}


def test_there_are_fifteen_rules_and_each_has_evidence_that_calls_for_it() -> None:
    traits = {trait for rule in RULES for trait in rule.adds}
    assert len(RULES) == 15
    assert traits == set(Trait) == {trait for trait, _, _ in CALLED_FOR}


@pytest.mark.spec("PROP-02")
@pytest.mark.parametrize(("added", "parent", "evidence"), CALLED_FOR)
async def test_each_symptom_triggers_its_rewrite(
    added: Trait, parent: str, evidence: list[Interaction]
) -> None:
    seen = context(*evidence)
    made = await proposals(parent, seen, count=20)
    assert added in added_by(made, parent)
    assert all((traits_of(parent) or set()) <= (traits_of(item.harness.code) or set()) for item in made)
    for item in made:
        assert seen.evidence.citation_problem(item.evidence_ids) is None
        assert check_program(item.harness.code, parent).errors == ()


@pytest.mark.parametrize(
    ("trait", "parent", "evidence"),
    [
        (Trait.NOTICE, LOOP, ended(StopReason.MODEL_CALL_BUDGET)),
        (Trait.NOTICE, LOOP, ended(StopReason.OUTPUT_TRUNCATED, tools=OWN)),
        (Trait.TABLES, LOOP, after(error="ZeroDivisionError: division by zero")),
        (Trait.PRINT, LOOP, after(stdout="12")),
        (Trait.PRINT, LOOP, after(error="ValueError: x")),
        (Trait.PRINT, LOOP, [interaction(f"t{n}", ReplyCase.RECONSIDER, tools=EMPTY_LOOK_UP)
                             for n in range(3)]),
        (Trait.RECENT, LOOP, ended(StopReason.CONTEXT_BUDGET, texts=1)),
        (Trait.QUICK, LOOP, ended(StopReason.TIME_BUDGET, tools=OWN)),
        (Trait.LAST_PAIR, LOOP, FIRST_STEP),
        (Trait.WIDE, ONE_STEP_ON, DOUBTED),
        (Trait.WIDE, seed_harness().code, [interaction(f"t{n}", ReplyCase.RECONSIDER, tools=EMPTY_LOOK_UP)
                                           for n in range(3)]),
        (Trait.PAGES, LOOP, DOUBTED),
        (Trait.INSPECT, LOOP, DOUBTED),
        (Trait.REPAIR, ONE_STEP_ON, DOUBTED),
        (Trait.FOCUS, ONE_STEP_ON, FIRST_STEP),
        (Trait.DIRECT, LOOP, DOUBTED),
        (Trait.EXAMPLES, LOOP, DOUBTED),
    ],
)  # fmt: skip
async def test_a_rewrite_is_not_proposed_on_other_evidence(
    trait: Trait, parent: str, evidence: list[Interaction]
) -> None:
    assert trait not in added_by(await proposals(parent, context(*evidence), count=20), parent)


@pytest.mark.parametrize(("added", "parent", "evidence"), CALLED_FOR)
async def test_one_task_alone_calls_for_nothing(
    added: Trait, parent: str, evidence: list[Interaction]
) -> None:
    accepted = [interaction(f"u{n}", ReplyCase.ACCEPTED, tools=ROWS) for n in range(2)]
    crashed = interaction("u9", ReplyCase.ACCEPTED, tools=ROWS, crash="ValueError")
    made = await proposals(parent, context(evidence[0], crashed, *accepted), count=20)
    assert added not in added_by(made, parent)


async def test_a_rewrite_of_the_loop_is_not_proposed_for_a_program_without_one() -> None:
    for trait, _, evidence in CALLED_FOR:
        if trait in LOOP_ONLY:
            made = await proposals(ONE_STEP_ON, context(*evidence), count=20)
            assert not added_by(made, ONE_STEP_ON) & LOOP_ONLY
            made = await proposals(LOOP, context(*evidence, *FIRST_STEP), count=40)
            for item in made:
                traits = traits_of(item.harness.code) or frozenset()
                assert not (Trait.DIRECT in traits and traits & LOOP_ONLY)


RECORDED = {
    # Stop reasons, replies and look-ups of the interactions of recipe laptop, seed 1, by phase; RL cut to one
    # update a phase.
    1: [("first_answer", "invalid_format", 0)] * 3 + [("output_truncated", None, 0)] * 9,
    2: [("first_answer", "invalid_format", 1)] * 2
    + [("first_answer", "reconsider", 1)] * 3
    + [("output_truncated", "reconsider", 1)] * 3
    + [("accepted", "accepted", 1)] * 4,
    3: [("output_truncated", "invalid_format", 1)] * 3
    + [("output_truncated", None, 1)]
    + [("output_truncated", "reconsider", 1)] * 2
    + [("first_answer", "reconsider", 1)] * 2
    + [("first_answer", "invalid_format", 1)]
    + [("accepted", "accepted", 1)] * 3,
}


@pytest.mark.parametrize(
    ("phase", "parent", "proposed"),
    [
        (
            1,
            seed_harness().code,
            [{Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP}, {Trait.DIRECT, Trait.EXAMPLES}, {Trait.LOOK_UP}],
        ),
        (2, ONE_STEP_ON, [{Trait.FOCUS}, {Trait.MORE_EXAMPLES}, {Trait.REPAIR}]),
        (
            3,
            assemble(FOCUSED),
            [{Trait.MORE_EXAMPLES}, {Trait.REPAIR}, {Trait.MORE_EXAMPLES, Trait.REPAIR}],
        ),
    ],
)
async def test_on_the_demos_recorded_evidence_the_proposals_are_those_that_were_measured(
    phase: int, parent: str, proposed: list[set[Trait]]
) -> None:
    seen = [
        interaction(
            f"t{n}",
            ReplyCase(case) if case else None,
            tools=ROWS * found,
            submissions=("<answer>x</answer>",) if case else (),
            stop=StopReason(stop),
        )
        for n, (stop, case, found) in enumerate(RECORDED[phase])
    ]
    made = await proposals(parent, context(*seen))
    had = traits_of(parent) or frozenset()
    assert [(traits_of(item.harness.code) or frozenset()) - had for item in made] == proposed


async def test_rare_symptoms_are_answered_one_by_one_before_they_are_combined() -> None:
    made = await proposals(ONE_STEP_ON, context(*DOUBTED, *FIRST_STEP[:2]), count=5)
    added = [(traits_of(item.harness.code) or set()) - (traits_of(ONE_STEP_ON) or set()) for item in made]
    assert added == [
        {Trait.FOCUS},
        {Trait.MORE_EXAMPLES},
        {Trait.REPAIR},
        {Trait.FOCUS, Trait.REPAIR},
        {Trait.MORE_EXAMPLES, Trait.REPAIR},
    ]


async def test_a_rewrite_without_its_symptom_is_not_proposed() -> None:
    made = await proposals(ONE_STEP_ON, context(*DOUBTED))
    assert not any(Trait.REPAIR in (traits_of(item.harness.code) or ()) for item in made)


async def test_what_this_cycle_tried_from_the_same_parent_is_not_proposed_again() -> None:
    seen = context(*DOUBTED)
    first, *others = await proposals(ONE_STEP_ON, seen)
    entry = HistoryEntry(
        cycle=1,
        step=1,
        parent=Harness(code=ONE_STEP_ON).digest,
        parent_correct=1,
        total=4,
        adopted=False,
        tried=(Tried(harness=first.harness.digest, hypothesis=first.hypothesis, outcome="not better"),),
    )
    again = await proposals(ONE_STEP_ON, context(*DOUBTED, history=(entry,)))
    assert first.harness.digest not in {item.harness.digest for item in again}
    assert [item.harness.digest for item in again][: len(others)] == [o.harness.digest for o in others]
    later = await proposals(ONE_STEP_ON, context(*DOUBTED, history=(entry,), cycle=2))
    assert later[0].harness.digest == first.harness.digest
