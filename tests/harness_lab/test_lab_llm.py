"""The chat improver: three commands within limits; what goes wrong is recorded and the step goes on."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lab_samples import interaction, tool_call

from broker.budgets import Budgets
from broker.endpoint import EndpointSettings
from broker.harness import Harness
from harness_lab.chat import ChatEndpoint
from harness_lab.evidence import bundle
from harness_lab.history import HistoryEntry, Tried
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from harness_lab.improver.fit import LEFT_OUT, estimated_tokens, fitting
from harness_lab.improver.llm import CALLS, READS, REPAIRS, ChatImprover, ProgramEditor
from harness_lab.improver.prompts import digest, templates
from harness_lab.improver.skills import EntryEditor
from harness_lab.improver.view import DETAILS, overview
from harness_lab.replies import ReplyCase
from tests.fixtures.stub_server import StubServer

PARENT = Harness(code="def run(task, api):\n    api.submit(api.generate([]))\n")
BETTER = PARENT.code.replace("[]", "[{'role': 'user', 'content': task['prompt']}]")
CONTEXT = ProposalContext(
    evidence=bundle(
        [],
        [
            interaction("t1", ReplyCase.RECONSIDER, tools=(tool_call(stdout="x" * 20_000),)),
            interaction("t2", ReplyCase.RECONSIDER),
        ],
    ),
    inventory={"tables": []},
    budgets=Budgets(),
)
PROPOSE = {
    "command": "propose",
    "code": BETTER,
    "hypothesis": "send the question",
    "rationale": "it was missing",
    "evidence_ids": ["e0:0", "e1:0"],
}
READ = {"command": "read", "field": "episode/0/tool/0/stdout", "offset": 6000}


async def ask(*replies: Any, count: int = 1) -> tuple[tuple[Proposal | Skip, ...], StubServer]:
    said = [reply if isinstance(reply, str) else json.dumps(reply) for reply in replies]
    counter = iter(range(100))
    with StubServer(chat_policy=lambda _: said[min(next(counter), len(said) - 1)]) as stub:
        improver = ChatImprover(ChatEndpoint(stub.url, "m"))
        try:
            return await propose_all(improver, PARENT, CONTEXT, count), stub
        finally:
            await improver.close()


@pytest.mark.spec("PROP-04")
async def test_read_then_propose_gives_the_field_from_its_offset_and_a_candidate() -> None:
    (made,), stub = await ask(READ, f"Here it is: {json.dumps(PROPOSE)} I hope it helps.")
    assert isinstance(made, Proposal)
    assert made.harness.code == BETTER
    assert made.protocol["reads"] == 1
    shown = stub.bodies[1]["messages"][-1]["content"]
    assert "6000 characters from 6000; 8000 characters follow from offset 12000. 2 reads are left." in shown
    assert shown.endswith("x" * 6000)


@pytest.mark.spec("PROP-03")
async def test_the_improver_sees_parent_inventory_evidence_history_and_budgets() -> None:
    _, stub = await ask(PROPOSE)
    shown = stub.bodies[0]["messages"][-1]["content"]
    for part in (
        PARENT.code.strip(),
        '"tables"',
        '"e0:0"',
        "Earlier steps",
        '"tool_seconds"',
        "candidate 1 of 1",
        '"all": {"episodes": 2, "first_answer": {"valid": 2, "invalid": 0, "none": 0}',
        '"budgets_hit"',
    ):
        assert part in shown, part
    system = stub.bodies[0]["messages"][0]["content"]
    for part in (
        "api.left",
        "api.notice",
        'Source "task"',
        "ids, prompts or accepted answers",
        "sandbox",
        "3 reads",
    ):
        assert part in system, part


@pytest.mark.spec("PROP-04")
async def test_skip_is_a_choice_and_a_wrapper_named_after_the_command_is_undone() -> None:
    (skipped,), _ = await ask({"skip": {"reason": "nothing to gain"}})
    assert isinstance(skipped, Skip)
    assert (skipped.kind, skipped.reason) == ("skipped", "nothing to gain")


@pytest.mark.spec("PROP-05")
async def test_a_fourth_read_and_a_read_after_a_proposal_cost_repairs() -> None:
    (made,), _ = await ask(*[READ] * (READS + 1), PROPOSE)
    assert isinstance(made, Proposal)
    assert made.protocol == {**made.protocol, "reads": READS, "repairs": 1, "calls": READS + 2}
    broken = {**PROPOSE, "code": "def run(:"}
    (made,), _ = await ask(broken, READ, PROPOSE)
    assert isinstance(made, Proposal)
    assert "reads are closed" in made.protocol["problems"][1]


@pytest.mark.spec("PROP-05", "PROP-08")
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("no json at all", "no JSON object"),
        ({"command": "dance"}, "unknown command"),
        ({**PROPOSE, "code": "def run(:"}, "syntax error"),
        ({**PROPOSE, "evidence_ids": ["e0:0"]}, "two to four"),
        (
            {**PROPOSE, "code": "def run(task, api):\n    x = (1\n"},
            "in line 2, column 9: '(' was never closed",
        ),
        ({**PROPOSE, "code": PARENT.code}, "byte-identical to its parent"),
        ({**PROPOSE, "code": ["x"]}, "needs code: the text of the whole program"),
        ({**PROPOSE, "evidence_ids": 3}, "needs evidence_ids: a list"),
        ({**PROPOSE, "evidence_ids": ["e0:0", 1]}, "every evidence id is a text"),
        (
            {**PROPOSE, "evidence_ids": ["e0:0", "e7:1"]},
            "unknown evidence id 'e7:1'; the ids are e0:0 (task 1), e1:0",
        ),
        ({**PROPOSE, "evidence_ids": ["e0:0", "e0:0"]}, "two to four different evidence ids"),
        ({**PROPOSE, "hypothesis": ""}, "needs a hypothesis"),
        ({**PROPOSE, "rationale": ["x"]}, "the rationale must be a text"),
        ({"command": "read", "field": "episode/9/question"}, "unknown field"),
        ({"command": "read", "field": "program", "offset": "4"}, "offset is a number"),
        ({"command": "read", "field": "program", "offset": 10**6}, "no offset 1000000"),
    ],
)
async def test_what_stays_wrong_after_two_repairs_is_a_recorded_failure(reply: Any, problem: str) -> None:
    (made,), stub = await ask(reply)
    assert isinstance(made, Skip)
    assert made.kind == "failed"
    assert problem in made.reason
    assert made.protocol["calls"] == REPAIRS + 1 == stub.counts["chat"]


@pytest.mark.spec("PROP-05")
async def test_six_calls_are_the_most() -> None:
    (made,), stub = await ask(READ, READ, READ, "x", "x", READ)
    assert isinstance(made, Skip)
    assert stub.counts["chat"] <= CALLS


@pytest.mark.spec("PROP-08")
async def test_a_dead_endpoint_fails_every_candidate_and_raises_nothing() -> None:
    improver = ChatImprover(ChatEndpoint("http://127.0.0.1:9/v1", "m", settings=EndpointSettings(attempts=1)))
    made = await propose_all(improver, PARENT, CONTEXT, 3)
    assert [item.command for item in made] == ["skip"] * 3
    assert all(isinstance(item, Skip) and item.kind == "failed" for item in made)


@pytest.mark.spec("PROP-05")
async def test_a_preview_that_is_cut_says_so_and_costs_no_read() -> None:
    (made,), _ = await ask(PROPOSE)
    assert isinstance(made, Proposal)
    assert made.protocol["reads"] == 0
    long = interaction("t1", ReplyCase.RECONSIDER, submissions=("y" * 5000,))
    context = CONTEXT.model_copy(
        update={"evidence": bundle([], [long, interaction("t2", ReplyCase.RECONSIDER)])}
    )
    assert "[cut: 4400 more characters]" in overview(PARENT, context, 0, 1)


@pytest.mark.spec("PROP-05")
async def test_a_repair_says_what_is_wrong_and_how_many_are_left() -> None:
    _, stub = await ask(
        {**PROPOSE, "code": "def run(:"}, {**PROPOSE, "evidence_ids": ["e9:9", "e0:0"]}, PROPOSE
    )
    first, second = (body["messages"][-1]["content"] for body in stub.bodies[1:])
    assert "Not accepted: syntax error in line 1, column 9" in first
    assert "1 repair is left" in first
    assert "unknown evidence id 'e9:9'" in second
    assert "The next reply is the last." in second


@pytest.mark.spec("PROP-05")
async def test_null_fields_and_extra_fields_of_a_structured_reply_are_no_problem() -> None:
    (made,), stub = await ask({**PROPOSE, "field": None, "offset": None, "reason": None, "mood": "good"})
    assert isinstance(made, Proposal)
    schema = stub.bodies[0]["response_format"]["json_schema"]["schema"]
    assert (
        set(schema["required"]) == set(schema["properties"]) >= {"command", "field", "code", "evidence_ids"}
    )


class SlowThird:
    """An improver whose last proposal takes its time; it notes who was asked when."""

    identity = "slow/1"

    def __init__(self) -> None:
        self.finished: list[int] = []

    async def propose(self, parent: Harness, context: ProposalContext, index: int, count: int) -> Skip:
        await asyncio.sleep(0.2 if index == 2 else 0)
        self.finished.append(index)
        return Skip(reason=str(index))

    async def close(self) -> None:
        return None


@pytest.mark.spec("PROP-01")
async def test_all_three_proposals_are_there_before_anything_of_the_step_goes_on() -> None:
    improver = SlowThird()
    found = await propose_all(improver, PARENT, CONTEXT, 3)
    assert [item.reason for item in found if isinstance(item, Skip)] == ["0", "1", "2"]
    assert improver.finished == [0, 1, 2]


@pytest.mark.spec("PROP-01")
async def test_the_three_conversations_do_not_see_each_other() -> None:
    (one, two, three), stub = await ask(PROPOSE, {**PROPOSE, "hypothesis": "second"}, READ, PROPOSE, count=3)
    assert len({json.dumps(body["messages"][0]) for body in stub.bodies}) == 1
    for body in stub.bodies:
        said = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        assert not any("second" in text for text in said)
    assert {item.command for item in (one, two, three)} == {"propose"}


SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("name", ["llm", "skills", "overview"])
def test_the_words_said_to_a_chat_improver_are_those_of_the_snapshot(name: str) -> None:
    """After a wanted change: raise nothing by hand, the digest does; write the new text into the snapshot."""
    made = {
        "llm": lambda: ProgramEditor().system(),
        "skills": lambda: EntryEditor().system(),
        "overview": lambda: overview(PARENT, SNAPSHOT_CONTEXT, 0, 3, scopes=("all", "family:metals")),
    }[name]()
    assert made + "\n" == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")


SNAPSHOT_CONTEXT = CONTEXT.model_copy(
    update={
        "evidence": bundle(
            [],
            [
                interaction("t1", ReplyCase.TOOL_FAILED, tools=(tool_call(error="KeyError: 'x'", after=0),)),
                interaction("t2", ReplyCase.RECONSIDER),
            ],
        ),
        "history": (
            HistoryEntry(
                cycle=1,
                step=1,
                parent="sha256:" + "0" * 64,
                parent_correct=3,
                total=9,
                adopted=False,
                tried=(
                    Tried(
                        harness="sha256:" + "1" * 64, hypothesis="ask twice", outcome="not better", correct=3
                    ),
                ),
            ),
        ),
    }
)


def test_every_template_is_part_of_the_identity() -> None:
    names = {"contract", "judged", "commands", "llm_system", "skills_system", "overview", "read", "repair"}
    assert set(templates()) == names
    endpoint = ChatEndpoint("http://127.0.0.1:9/v1", "m")
    assert digest() in ChatImprover(endpoint).identity
    assert ChatImprover(endpoint).identity != ChatImprover(endpoint, 32_768).identity


def many(count: int) -> ProposalContext:
    inventory = {
        "tables": [
            {"path": f"/lake/{n}.csv", "columns": [{"name": f"c{i}", "example": "x" * 40} for i in range(30)]}
            for n in range(60)
        ]
    }
    seen = [interaction(f"t{n}", ReplyCase.RECONSIDER, submissions=("long " * 300,)) for n in range(count)]
    seen += [interaction(f"a{n}", ReplyCase.ACCEPTED) for n in range(4)]
    return CONTEXT.model_copy(update={"evidence": bundle([], seen), "inventory": inventory})


@pytest.mark.spec("PROP-03")
@pytest.mark.parametrize("room", [1 << 20, 30_000, 16_000, 8_000, 4_000, 600])
def test_the_overview_fits_into_any_context_by_stated_cuts(room: int) -> None:
    parent = Harness(code=PARENT.code + "# " + "z" * 9_000)
    shown = overview(parent, many(28), 0, 3, room=room)
    assert estimated_tokens(shown) <= room + 30
    assert ("Left out here, so that it fits" in shown) is (room < 1 << 20)
    if room >= 8_000:
        assert all(f'"e{n}:0"' in shown for n in range(28))


def test_details_only_ever_get_poorer() -> None:
    for richer, poorer in pairwise(DETAILS):
        assert poorer.text < richer.text
        assert poorer.question < richer.question
        assert poorer.history <= richer.history


def test_a_conversation_that_grows_past_the_context_loses_its_oldest_exchanges() -> None:
    turns = [{"role": "user", "content": str(number) * 300} for number in range(8)]
    kept = fitting(turns, 550)
    assert [message["content"] == LEFT_OUT for message in kept] == [False] * 2 + [True] * 4 + [False] * 2
    assert fitting(turns, 10_000) == turns
    assert len(fitting(turns, 1)) == len(turns)


async def test_a_small_context_is_no_error() -> None:
    reply = json.dumps({**PROPOSE, "code": BETTER + "#" * 6_000})
    with StubServer(chat_policy=lambda _: reply.replace("e1:0", "e8:8")) as stub:
        improver = ChatImprover(ChatEndpoint(stub.url, "m", max_tokens=1024), 4096)
        [made] = await propose_all(improver, PARENT, many(28), 1)
        await improver.close()
        for body in stub.bodies:
            sent = sum(estimated_tokens(message["content"]) for message in body["messages"][:2])
            assert sent <= 4096 - 1024 + 40
    assert made.protocol["calls"] == REPAIRS + 1
