"""The chat improver: three commands within limits; what goes wrong is recorded and the step goes on."""

import json
from typing import Any

import pytest
from lab_samples import interaction, tool_call

from broker.budgets import Budgets
from broker.endpoint import EndpointSettings
from broker.harness import Harness
from harness_lab.chat import ChatEndpoint
from harness_lab.evidence import bundle
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from harness_lab.improver.llm import CALLS, READS, REPAIRS, ChatImprover
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
    assert "from 6000" in shown
    assert "characters left" in shown


@pytest.mark.spec("PROP-03")
async def test_the_improver_sees_parent_inventory_evidence_history_and_budgets() -> None:
    _, stub = await ask(PROPOSE)
    shown = stub.bodies[0]["messages"][-1]["content"]
    for part in (PARENT.code, '"tables"', '"e0:0"', '"history"', '"tool_seconds"', "candidate"):
        assert part in shown


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
        ({**PROPOSE, "evidence_ids": 3}, "needs code"),
        ({**PROPOSE, "hypothesis": ""}, "needs code"),
        ({"command": "read", "field": "episode/9/question"}, "unknown field"),
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
