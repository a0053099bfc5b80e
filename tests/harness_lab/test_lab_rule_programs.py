"""What the rule improver's programs do: general, and each trait says its words when they are due."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from rule_samples import FOCUSED, ONE_STEP_ON

from broker.budgets import Budgets
from broker.guidance import host_guidance, program_task
from broker.record import StopReason
from harness_lab.improver.assemble import Trait, assemble, traits_of
from harness_lab.improver.examples import EXAMPLES
from harness_lab.seed import seed_harness
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker, release, right_answer
from tests.fixtures.sandboxes import real_sandboxes
from verifier.release import find
from verifier.task import Task


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
