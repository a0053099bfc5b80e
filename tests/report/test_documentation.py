"""What the documents promise must hold."""

import ast
import re
from pathlib import Path

from broker.record import StopReason
from harness_lab.check import check_program
from tests.fixtures.episodes import ScriptedModel, a_task, attempt, make_broker, right_answer

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ROOMS = "broker|deploy|docs|flows|harness_lab|report|rl|tasks|verifier"
NAMED = re.compile(rf"`((?:{ROOMS})/[\w./-]+\.\w+)`")


def worked_example() -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "programs.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_worked_example_passes_the_checks():
    checked = check_program(worked_example())
    assert checked.errors == ()
    assert checked.notices == ()


async def test_the_worked_example_looks_up_and_answers():
    task = a_task()
    model = ScriptedModel("<execute>print(6 * 7)</execute>", right_answer(task))
    graded = await make_broker(model).run(attempt(worked_example(), task))
    assert graded.record.stop_reason is StopReason.FIRST_ANSWER
    assert graded.verdict.correct
    assert [call.stdout.strip() for call in graded.record.tool_calls] == ["42"]
    assert [message.source for message in graded.record.model_calls[1].messages] == [
        "harness",
        "task",
        "model",
        "tool",
        "harness",
    ]


def test_documents_name_only_files_that_exist():
    for document in DOCUMENTS:
        for name in NAMED.findall(document.read_text()):
            assert (ROOT / name).exists(), f"{document.name} names {name}"


def test_every_module_says_what_it_is_for():
    for path in (ROOT / "report").glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name
