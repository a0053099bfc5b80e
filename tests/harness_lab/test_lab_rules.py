"""The rule improver: evidence-triggered, three different hypotheses, general by construction."""

import io
from contextlib import redirect_stdout
from typing import Any

import pytest
from lab_samples import interaction, tool_call

from broker.budgets import Budgets
from broker.guidance import host_guidance, program_task
from broker.harness import Harness
from broker.record import StopReason
from harness_lab.check import check_program
from harness_lab.evidence import Interaction, bundle
from harness_lab.history import HistoryEntry, Tried
from harness_lab.improver.assemble import Trait, assemble, traits_of
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from harness_lab.improver.examples import EXAMPLES
from harness_lab.improver.rules import RuleImprover
from harness_lab.replies import ReplyCase
from harness_lab.seed import seed_harness
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker, release, right_answer
from tests.fixtures.sandboxes import real_sandboxes
from verifier.release import find
from verifier.task import Task

FIRST_STEP = [interaction(f"t{n}", ReplyCase.INVALID_FORMAT) for n in range(4)]
ROWS = (tool_call(stdout="name: copper, melting: 1085"),)
DOUBTED = [interaction(f"t{n}", ReplyCase.RECONSIDER, tools=ROWS) for n in range(3)]
ONE_STEP_ON = assemble({Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP})
FOCUSED = {Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP, Trait.FOCUS}


def context(*interactions: Interaction, **changes: Any) -> ProposalContext:
    inventory = release().inventory().model_dump(mode="json")
    return ProposalContext(
        evidence=bundle([], interactions), inventory=inventory, budgets=Budgets(), **changes
    )


async def proposals(parent: str, given: ProposalContext, count: int = 3) -> list[Proposal]:
    found = await propose_all(RuleImprover(), Harness(code=parent), given, count)
    return [item for item in found if isinstance(item, Proposal)]


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


@pytest.mark.parametrize(
    ("evidence", "parent", "added"),
    [
        (FIRST_STEP, seed_harness().code, Trait.EXAMPLES),
        (FIRST_STEP, seed_harness().code, Trait.LOOK_UP),
        (DOUBTED, ONE_STEP_ON, Trait.FOCUS),
        (DOUBTED, ONE_STEP_ON, Trait.MORE_EXAMPLES),
        (FIRST_STEP, ONE_STEP_ON, Trait.REPAIR),
        (
            [interaction(f"t{n}", tools=(tool_call(error="KeyError"),)) for n in range(2)],
            seed_harness().code,
            Trait.INSPECT,
        ),
        (
            [interaction(f"t{n}", submissions=(), stop=StopReason.OUTPUT_TRUNCATED) for n in range(2)],
            seed_harness().code,
            Trait.DIRECT,
        ),
    ],
)
async def test_each_symptom_triggers_its_rewrite(
    evidence: list[Interaction], parent: str, added: Trait
) -> None:
    made = await proposals(parent, context(*evidence))
    assert any(added in (traits_of(item.harness.code) or ()) for item in made)
    assert all((traits_of(parent) or set()) <= (traits_of(item.harness.code) or set()) for item in made)


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


def test_assembly_is_deterministic_and_its_traits_can_be_read_back() -> None:
    for trait in Trait:
        chosen = FOCUSED | {trait}
        assert assemble(chosen) == assemble(sorted(chosen, reverse=True))
        assert traits_of(assemble(chosen)) == chosen
    assert traits_of(seed_harness().code) is None
    assert traits_of("TRAITS = ('unknown',)") is None
    assert traits_of("def run(") is None


def test_nothing_of_the_bundled_release_is_in_any_program() -> None:
    bundled = find("open-genomics")
    code = "\n".join(assemble(FOCUSED | {trait}) for trait in Trait)
    lake = bundled.lake
    assert lake is not None
    for table in bundled.inventory().tables:
        assert table.path not in code
        name = table.path.rpartition("/")[2]
        assert name not in code
        cells = {cell for line in (lake / name).read_text().splitlines()[1:] for cell in line.split("\t")}
        invented = [item for examples in EXAMPLES.values() for item in examples]
        words = {word.strip('",?') for item in invented for word in (*item.question.split(), item.answer)}
        names = {word for word in words if any(c.isalpha() for c in word) and any(c.isdigit() for c in word)}
        assert names
        assert not names & cells


def shown(code: str, task: Task) -> list[dict[str, str]]:
    """The messages that reach the model, with the tiny release's own folder as the lake."""
    lake = release().lake
    assert lake is not None
    inventory = release().inventory()
    given = program_task(task, Budgets(), host_guidance(inventory), inventory, user_turns=0)
    for table in given["inventory"]["tables"]:
        table["path"] = table["path"].replace("/lake", str(lake))
    asked: list[list[dict[str, str]]] = []

    class Done(Exception):
        pass

    class Api:
        def execute(self, text: str) -> dict[str, Any]:
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(text, "tool", "exec"), {})
            return {"stdout": out.getvalue(), "error": ""}

        def generate(self, messages: list[dict[str, str]]) -> str:
            asked.append(messages)
            raise Done

    names: dict[str, Any] = {}
    exec(compile(code, "program", "exec"), names)
    with pytest.raises(Done):
        names["run"](given, Api())
    return asked[0]


@pytest.mark.parametrize("task", release().split("train"), ids=lambda task: task.id)
def test_on_a_release_with_other_tables_the_look_up_leaves_the_answer_alone_in_the_prompt(task: Task) -> None:
    messages = shown(assemble(FOCUSED), task)
    rows = messages[-1]["content"].replace(task.prompt, "").strip()
    answer = right_answer(task).removeprefix("<answer>").removesuffix("</answer>")
    value = task.options["ABCD".index(answer)] if task.options else answer
    assert rows.split("\n")[-1] == value
    assert len(rows.split("\n")) == 2
    assert messages[-1]["source"] == "harness"
    assert {m["source"] for m in messages if m["role"] == "assistant"} == {"harness"}
    layouts = {len(m["content"].split("\n\n")) for m in messages if m["role"] == "user"}
    assert layouts == {2}


def test_without_focus_all_columns_of_the_row_are_shown() -> None:
    task = next(task for task in release().split("train") if task.subtopic == "melting")
    rows = shown(ONE_STEP_ON, task)[-1]["content"].replace(task.prompt, "")
    assert all(f"{name}: " in rows for name in ("name", "symbol", "density", "melting"))


def test_extremes_are_sorted_by_what_the_question_names() -> None:
    from harness_lab.improver.blocks.focus import focus

    found = [
        {"table": "t", "column": "house", "row": {"house": "h", "shop": shop, "distance": far}}
        for shop, far in (("Bo", "90"), ("Al", "7"), ("Cy", "300"))
    ]
    near = focus(found, "Which shop is nearest to house ?", [])
    assert [row["shop"] for row in near] == ["Al", "Bo", "Cy"]
    far = focus(found, "Which shop is the farthest from house ?", [])
    assert [row["shop"] for row in far] == ["Cy", "Bo", "Al"]
    assert [row["shop"] for row in focus(found, "Which shop and distance?", [])] == ["Bo", "Al", "Cy"]


async def test_an_assembled_program_runs_in_the_real_sandbox_on_the_tiny_release() -> None:
    sandboxes = real_sandboxes()
    try:
        tasks = release().split("train")
        broker = make_broker(ScriptedModel("<answer>x</answer>"), sandboxes)
        for traits in (FOCUSED, {Trait.LOOK_UP}, FOCUSED | {Trait.REPAIR, Trait.MORE_EXAMPLES}):
            graded = await broker.run(attempt(assemble(traits), tasks[0]))
            assert graded.record.error is None
            assert graded.record.tool_calls[0].error == ""
            assert graded.record.tool_calls[0].stdout.strip()
            assert graded.record.stop_reason is StopReason.FIRST_ANSWER
    finally:
        await sandboxes.close()


async def test_repair_asks_once_more_and_inspect_shows_the_tables() -> None:
    repair = make_broker(ScriptedModel("no tags", "<answer>1</answer>"))
    graded = await repair.run(attempt(assemble({Trait.DIRECT, Trait.REPAIR})))
    assert graded.verdict.format_valid
    inspect = make_broker(ScriptedModel("<execute>x</execute>", "<answer>1</answer>"))
    graded = await inspect.run(attempt(assemble({Trait.INSPECT})))
    assert "metals.csv: name, symbol" in graded.record.model_calls[1].messages[-1].content
