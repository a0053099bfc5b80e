"""The rule improver: evidence-triggered, three different hypotheses, general by construction."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from lab_samples import interaction, model_call, tool_call

from broker.budgets import Budgets
from broker.guidance import host_guidance, program_task
from broker.harness import Harness
from broker.record import StopReason, ToolCall
from harness_lab.check import check_program
from harness_lab.evidence import Interaction, bundle
from harness_lab.history import HistoryEntry, Tried
from harness_lab.improver.assemble import LOOP_ONLY, Trait, assemble, traits_of
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from harness_lab.improver.examples import EXAMPLES
from harness_lab.improver.rules import RULES, RuleImprover
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


NOTICES = {
    Trait.NOTICE: (
        ["<execute>1</execute>"],
        {"tool_calls": 1},
        "Budget notice: 3 model calls and 0 tool calls",
    ),
    Trait.TABLES: ([], {}, "Columns of the tables:"),
    Trait.QUICK: ([], {"tool_seconds": 7.5}, "Code is stopped after 7.5 seconds"),
    Trait.PRINT: (["<execute>x = 1</execute>"], {}, "Nothing was printed"),
    Trait.PAGES: (["<execute>print('ab ' * 4000)</execute>"], {}, "The output was cut"),
}


@pytest.mark.parametrize("trait", sorted(NOTICES))
async def test_each_new_trait_of_the_loop_says_its_words_when_they_are_due(trait: Trait) -> None:
    texts, budgets, words = NOTICES[trait]
    for traits, expected in (({trait}, True), (set[Trait](), False)):
        model = ScriptedModel(*texts, "<answer>1</answer>")
        graded = await make_broker(model, model_calls=4, **budgets).run(attempt(assemble(traits)))
        assert graded.record.stop_reason is StopReason.FIRST_ANSWER
        shown = "\n".join(message.content for message in graded.record.model_calls[-1].messages)
        assert (words in shown) is expected


async def test_the_last_model_call_is_an_answer_whatever_it_holds() -> None:
    for traits, stop in (
        ({Trait.NOTICE}, StopReason.FIRST_ANSWER),
        (set[Trait](), StopReason.MODEL_CALL_BUDGET),
    ):
        broker = make_broker(ScriptedModel("<execute>print(1)</execute>"), model_calls=2, tool_calls=9)
        assert (await broker.run(attempt(assemble(traits)))).record.stop_reason is stop


async def test_of_several_answers_the_last_is_submitted() -> None:
    texts = ("<answer>A</answer>, no: <answer>B</answer>", "<answer>A</answer>", "<answer><answer>C</answer>")
    for text, submitted in zip(texts, ("<answer>B</answer>", texts[1], texts[2]), strict=True):
        broker = make_broker(ScriptedModel(text))
        graded = await broker.run(attempt(assemble({Trait.DIRECT, Trait.LAST_PAIR})))
        assert graded.record.submissions[0].text == submitted


async def test_older_turns_are_left_out_only_when_the_context_runs_short() -> None:
    said = [f"<execute>print('{word} ' * 60)</execute>" for word in ("alpha", "beta", "gamma", "delta")]
    budgets = {"tool_response_tokens": 100, "completion_tokens": 64, "model_calls": 6}
    for context_tokens, whole in ((6_000, True), (640, False)):
        model = ScriptedModel(*said, "<answer>1</answer>")
        broker = make_broker(model, context_tokens=context_tokens, **budgets)
        graded = await broker.run(attempt(assemble({Trait.RECENT})))
        assert graded.record.stop_reason is StopReason.FIRST_ANSWER
        shown = graded.record.model_calls[-1].messages
        assert ("alpha" in str(shown)) is whole
        assert "delta" in str(shown)
        assert [message.source for message in shown[:2]] == ["harness", "task"]


def test_a_wide_look_up_takes_cells_that_contain_the_name_only_where_none_is_equal() -> None:
    task = next(task for task in release().split("train") if task.subtopic == "melting")
    name = task.prompt.split('"')[1]
    other = task.model_copy(update={"prompt": task.prompt.replace(f'"{name}"', '"1"')})
    wide, narrow = assemble({Trait.LOOK_UP, Trait.WIDE}), assemble({Trait.LOOK_UP})
    assert shown(wide, task) == shown(narrow, task)
    assert shown(narrow, other)[-1]["source"] == "task"


def test_a_near_row_holds_the_name_as_a_whole_word(tmp_path: Path) -> None:
    from harness_lab.improver.blocks.near import find_near

    table = tmp_path / "t.csv"
    table.write_text("id,names\n1,TP53; p53\n2,TP53B\n3,other\n")
    found = find_near([{"path": str(table), "delimiter": ","}], ["tp53"])
    assert [(item["row"]["id"], item["column"]) for item in found] == [("1", "names")]
    assert find_near([{"path": str(table), "delimiter": ","}], [""]) == []
