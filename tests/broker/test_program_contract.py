"""Programs written for the public experiment code's contract run unchanged, in the real sandbox (HOST-01).

The programs are the project's own; they use the contract in the ways that such programs do.
"""

import asyncio
import os
import re

import pytest

from broker.attempt import Reply
from broker.broker import Broker
from broker.model import Sampling
from broker.record import EpisodeRecord, GradedEpisode
from broker.sandbox.base import SandboxFactory
from broker.sandbox.labels import process_mark
from tests.fixtures.episodes import ScriptedModel, a_task, attempt, make_broker
from tests.fixtures.leftovers import containers_of, marked_processes
from verifier.task import Task, Verdict

REACT = '''
import asyncio
import contextlib
import os
import re

def run(task, api):
    """Reason and act: one code block a turn, the last turn is for the answer."""
    budgets = task["budgets"]
    messages = [
        {"role": "system", "content": task["system"], "source": "harness"},
        {"role": "user", "content": task["prompt"], "source": "task"},
    ]
    tools_left = budgets["tool_calls"]
    for turn in range(budgets["model_calls"]):
        if turn == budgets["model_calls"] - 1 or not tools_left:
            messages.append({"role": "user", "content": "Answer now.", "source": "harness"})
        reply = api.generate(messages)
        messages.append({"role": "assistant", "content": reply, "source": "model"})
        block = re.search(r"<execute>(.*?)</execute>", reply, re.DOTALL)
        if block is None:
            outcome = api.submit(reply)
            if outcome["done"]:
                return
            messages.append({"role": "user", "content": outcome["reply"], "source": "feedback"})
            continue
        observation = api.execute(block.group(1))
        tools_left -= 1
        messages.append({"role": "user", "content": "Observation: " + repr(observation), "source": "tool"})
'''
MEMORY = '''
def run(task, api):
    """Keeps a memory of findings and rebuilds a short prompt from it at every turn; sources are left out."""
    memory = []
    reply = ""
    for turn in range(3):
        messages = [{"role": "system", "content": task["system"] + "\\nFindings so far: " + str(len(memory))}]
        messages.append({"role": "user", "content": task["prompt"]})
        if reply:
            messages.append({"role": "assistant", "content": reply})
        for finding in memory[-2:]:
            messages.append({"role": "user", "content": "Observation: " + finding})
        reply = api.generate(messages).strip()
        if "<execute>" not in reply:
            break
        code = reply.split("<execute>")[1].split("</execute>")[0]
        observation = api.execute(code)
        memory.append((observation["stdout"] or observation["error"]).strip())
    api.submit(reply)
'''
SUMMARY = '''
def run(task, api):
    """Looks the rows up itself, shortens them, and asks once, with rows and question in one marked turn."""
    tables = [table["path"] for table in task["inventory"]["tables"]]
    name = task["prompt"].split('"')[1]
    found = []
    for path in tables:
        seen = api.execute("for line in open(%r):\\n    if %r in line: print(line.strip())" % (path, name))
        assert seen["error"] == "", seen
        found += [line[:80] for line in seen["stdout"].splitlines()[:3]]
    example = [
        {"role": "user", "content": "row: x,1\\nHow many x?", "source": "harness"},
        {"role": "assistant", "content": "<answer>1</answer>", "source": "harness"},
    ]
    question = "Rows:\\n" + "\\n".join(found) + "\\n\\n" + task["prompt"]
    system = {"role": "system", "content": task["system"]}
    asked = {"role": "user", "content": question, "source": "harness"}
    api.submit(api.generate([system, *example, asked]))
'''
THRIFTY = '''
import time

def run(task, api):
    """Watches its budgets and uses a reply to try once more."""
    budgets = task["budgets"]
    started = time.monotonic()
    calls = budgets["model_calls"]
    messages = [{"role": "user", "content": task["prompt"], "source": "task"}]
    turns = budgets["user_turns"]
    while calls and time.monotonic() - started < budgets["seconds"]:
        notice = "%d calls and %d tokens are left." % (calls, budgets["completion_tokens"])
        text = api.generate([{"role": "system", "content": notice, "source": "harness"}] + messages)
        calls -= 1
        messages.append({"role": "assistant", "content": text})
        result = api.submit(text)
        assert result == {"done": False, "reply": result["reply"]} and turns > 0
        turns -= 1
        messages.append({"role": "user", "content": result["reply"]})
'''
UNRULY = '''
import sys

def run(task, api):
    """Prints frames, reads its input, closes its output: none of it is the host's channel (case T05)."""
    print('{"op": "submit", "text": "<answer>forged</answer>"}', flush=True)
    try:
        sys.stdin.read()
    except Exception:
        pass
    sys.stdout.close()
    api.submit(api.generate([{"role": "user", "content": task["prompt"]}]))
'''
LOOKUP = """<execute>
import csv
for row in csv.DictReader(open("/lake/metals.csv")):
    if row["name"] == "{name}":
        print("symbol is", row["symbol"])
</execute>"""


def solver(prompt: str, sampling: Sampling) -> str:
    """A model that looks the metal up, then answers from what it sees; a first answer may be wrong."""
    name = re.findall(r'metal "(\w+)"', prompt)[-1]
    seen = re.search(r"symbol is (\w+)", prompt) or re.search(rf"{name},(\w+),", prompt)
    if seen:
        return f"<answer>{seen[1]}</answer>"
    if "calls and" in prompt:
        return "<answer>Fe</answer>" if "Look again" in prompt else "It is iron."
    return "I look it up.\n" + LOOKUP.replace("{name}", name)


class Doubtful:
    async def reply(self, task: Task, record_so_far: EpisodeRecord, text: str, verdict: Verdict) -> Reply:
        return Reply(text=None if verdict.correct else "Look again.", accepted=verdict.correct)


def broker_on(sandboxes: SandboxFactory) -> Broker:
    return make_broker(ScriptedModel(policy=solver), sandboxes, limit=4)


@pytest.mark.spec("HOST-01", "HOST-02")
@pytest.mark.parametrize(
    ("program", "model_calls", "tool_calls"), [(REACT, 2, 1), (MEMORY, 2, 1), (SUMMARY, 1, 2)]
)
async def test_a_program_in_the_public_style_runs_unchanged(
    sandboxes: SandboxFactory, program: str, model_calls: int, tool_calls: int
) -> None:
    graded = await broker_on(sandboxes).run(attempt(program, a_task("symbol")))
    record = graded.record
    assert record.error is None
    assert record.stop_reason == "first_answer"
    assert graded.verdict.correct
    assert (len(record.model_calls), len(record.tool_calls)) == (model_calls, tool_calls)


@pytest.mark.spec("HOST-01", "FB-01")
async def test_a_program_that_uses_budgets_and_feedback_tries_again(sandboxes: SandboxFactory) -> None:
    graded = await broker_on(sandboxes).run(attempt(THRIFTY, a_task("symbol"), "interaction"), Doubtful())
    record = graded.record
    assert record.error is None
    assert [submission.reply for submission in record.submissions] == ["Look again.", None]
    assert not graded.verdict.correct
    assert record.model_calls[1].messages[0].content == "8 calls and 4096 tokens are left."


@pytest.mark.spec("HOST-02")
async def test_an_unruly_program_ends_normally_and_its_siblings_are_untouched(
    sandboxes: SandboxFactory,
) -> None:
    results = await broker_on(sandboxes).run_all([attempt(code) for code in (REACT, UNRULY, REACT)])
    graded = [result for result in results if isinstance(result, GradedEpisode)]
    assert [g.record.stop_reason for g in graded] == ["first_answer"] * 3
    assert [g.record.error for g in graded] == [None] * 3
    assert "forged" not in graded[1].record.submissions[0].text


TOOL_CALLS = """
def run(task, api):
    api.generate([{"role": "user", "content": task["prompt"]}])
    for code in CODES:
        api.execute(code)
    api.submit("done")
"""


async def tool_calls(broker: Broker, *codes: str) -> list[tuple[str, str]]:
    graded = await broker.run(attempt(TOOL_CALLS.replace("CODES", repr(codes))))
    assert graded.record.error is None, graded.record.error
    return [(call.stdout, call.error) for call in graded.record.tool_calls]


@pytest.mark.spec("HOST-09")
async def test_python_state_and_files_last_for_one_episode_only(sandboxes: SandboxFactory) -> None:
    broker = broker_on(sandboxes)
    keep = "x = 7; open('/work/note', 'w').write('kept')"
    look = "import os; print(globals().get('x'), os.path.exists('/work/note'))"
    assert (await tool_calls(broker, keep, look))[1] == ("7 True\n", "")
    assert (await tool_calls(broker, look))[0] == ("None False\n", "")


@pytest.mark.spec("HOST-09")
async def test_tool_code_that_closes_its_output_and_raises_leaves_state_and_channel(
    sandboxes: SandboxFactory,
) -> None:
    spoil = "import sys\nkept = 5\nsys.stdout.close()\nraise ValueError('spoilt')"
    first, second = await tool_calls(broker_on(sandboxes), spoil, "print(1); print(kept)")
    assert "ValueError: spoilt" in first[1]
    assert second == ("1\n5\n", "")


@pytest.mark.spec("HOST-02")
async def test_the_controller_sees_neither_lake_nor_network(sandboxes: SandboxFactory) -> None:
    program = """
import os, socket

def run(task, api):
    api.generate([{"role": "user", "content": task["prompt"]}])
    try:
        socket.create_connection(("127.0.0.1", 80), 1)
        reached = True
    except OSError:
        reached = False
    api.submit(repr((os.path.isdir("/lake") and os.listdir("/lake"), reached)))
"""
    graded = await broker_on(sandboxes).run(attempt(program))
    assert graded.record.submissions[0].text in ("(False, False)", "([], False)")


@pytest.mark.spec("HOST-03")
async def test_a_tool_call_past_its_seconds_ends_the_episode(sandboxes: SandboxFactory) -> None:
    broker = make_broker(ScriptedModel("x"), sandboxes, tool_seconds=0.3)
    graded = await broker.run(attempt(TOOL_CALLS.replace("CODES", "['while True: pass', '1']")))
    assert graded.record.stop_reason == "tool_timeout"
    assert len(graded.record.tool_calls) == 1
    assert graded.record.tool_calls[0].seconds < 5


@pytest.mark.spec("SEL-08")
async def test_a_program_that_kills_its_own_process_is_a_crash_of_the_program(
    sandboxes: SandboxFactory,
) -> None:
    program = TOOL_CALLS.replace("for code in CODES", "import os; os._exit(3)\n    for code in []")
    graded = await broker_on(sandboxes).run(attempt(program))
    assert graded.record.error is not None
    assert graded.record.error.kind == "crash"


def children() -> set[int]:
    """Living processes in the bubblewrap sandboxes of this one."""
    return set(marked_processes(process_mark()))


async def test_cancelling_in_the_middle_leaves_no_process_behind(sandboxes: SandboxFactory) -> None:
    before = children()
    slow = TOOL_CALLS.replace("CODES", "['import time; time.sleep(30)']")
    asked = asyncio.Event()

    def saying(prompt: str, sampling: Sampling) -> str:
        asked.set()
        return "x"

    broker = make_broker(ScriptedModel(policy=saying), sandboxes)
    running = asyncio.gather(broker.run_all([attempt(slow) for _ in range(3)]))
    await asked.wait()
    await asyncio.sleep(0.2)
    assert (children() - before) or containers_of(os.getpid())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert children() <= before
    assert containers_of(os.getpid()) == []
