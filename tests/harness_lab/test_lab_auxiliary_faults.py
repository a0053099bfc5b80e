"""Every fault of an auxiliary, caused for real on the wire: recorded, within limits, and the step goes on."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from lab_samples import interaction, tool_call

from broker.budgets import Budgets
from broker.endpoint import MAX_ANSWER_BYTES, EndpointSettings
from broker.harness import Harness
from harness_lab.auxiliary import ChatAuxiliary
from harness_lab.chat import LONGEST_REPLY, ChatEndpoint
from harness_lab.collect import collect
from harness_lab.evidence import bundle
from harness_lab.exchange import LONGEST_KEPT, Exchange
from harness_lab.fallbacks import fallbacks_of
from harness_lab.improver.base import Proposal, ProposalContext, Skip, propose_all
from harness_lab.improver.llm import CALLS, READS, ChatImprover
from harness_lab.replies import ReplyCase
from tests.fixtures.chat_answers import huge, refused, said, sensible
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, make_broker, release
from tests.fixtures.faulty_server import Asked, Fault, FaultyServer, answer, drip, endless, hang, reset

TRAIN = release().split("train")[:2]
CANARY = "rinr-canary-0123456789abcdef"
SHORT, LONG = 0.4, 10.0
"""Time-outs of one request: where it is the fault that is caused, and where another one is."""
LIMIT = 40.0
"""Seconds of a whole step under a fault: a handful of requests, whatever the machine's load."""
PARENT = Harness(code="def run(task, api):\n    api.submit(api.generate([]))\n")
BETTER = PARENT.code.replace("[]", "[{'role': 'user', 'content': task['prompt']}]")
PROPOSE: dict[str, Any] = {
    "command": "propose",
    "code": BETTER,
    "hypothesis": "send the question",
    "rationale": "it was missing",
    "evidence_ids": ["e0:0", "e1:0"],
}
READ = {"command": "read", "field": "episode/0/tool/0/stdout", "offset": 0}
CONTEXT = ProposalContext(
    evidence=bundle(
        [],
        [
            interaction(
                "t1", ReplyCase.TOOL_FAILED, tools=(tool_call(stdout="x" * 50_000, error="KeyError"),)
            ),
            interaction("t2", ReplyCase.RECONSIDER),
        ],
    ),
    inventory={"tables": []},
    budgets=Budgets(),
)

TRANSPORT: dict[str, tuple[Callable[[Asked], Fault], str]] = {
    "time-out": (lambda asked: hang, "no whole answer within"),
    "one byte now and then": (lambda asked: drip, "no whole answer within"),
    "429 with Retry-After": (lambda asked: answer({}, 429, Retry_After="30"), "says 'not now'"),
    "500": (lambda asked: answer({"error": "broken"}, 500), "status 500"),
    "refused key": (lambda asked: refused("bad key", 401), "SOME_KEY"),
    "refused for a reason of its own": (lambda asked: refused("this model is retired"), "retired"),
    "empty reply": (lambda asked: said("", completion_tokens=0), "generated nothing"),
    "white space": (lambda asked: said(" \n "), "empty reply"),
    "cut off": (lambda asked: said('{"command": "pro', "length"), "cut off"),
    "withheld": (lambda asked: said("", "content_filter"), "empty reply"),
    "not JSON": (lambda asked: answer(b"<html>proxy</html>"), "not JSON"),
    "connection dropped mid-body": (lambda asked: reset, "did not answer"),
    "a body without an end": (lambda asked: endless, "MiB"),
    "a reply of 100 MB": (lambda asked: huge(100), "MiB"),
    "a reply of 1 MB": (lambda asked: said("a" * (1 << 20)), "longer than"),
    "a reply that quotes the canary": (lambda asked: said(f'{{"reply": "{CANARY}"}}'), "quotes a canary"),
}
"""What the endpoint does to every role, and a word of the recorded problem."""


def opened(server: FaultyServer, problem: str) -> ChatEndpoint:
    seconds = SHORT if "no whole answer" in problem else LONG
    settings = EndpointSettings(timeout_seconds=seconds, attempts=2, patience_seconds=0.5)
    return ChatEndpoint(server.url, "m", "k", settings, key_hint="the environment variable SOME_KEY")


def check_kept(exchanges: tuple[Exchange, ...], problem: str) -> None:
    assert exchanges
    for item in exchanges:
        assert problem in item.problem, item.problem
        assert item.messages
        assert len(item.reply or "") <= LONGEST_KEPT


@pytest.mark.spec("FB-04", "FB-06", "PROP-08")
@pytest.mark.parametrize("fault", list(TRANSPORT))
async def test_an_interaction_goes_on_without_the_auxiliary_and_says_why(fault: str) -> None:
    behave, problem = TRANSPORT[fault]
    with FaultyServer(behave) as server:
        endpoint = opened(server, problem)
        broker = make_broker(ScriptedModel("no tags"), user_turns=1)
        started = time.monotonic()
        found = await collect(broker, Harness(code=ASK_AND_SUBMIT), TRAIN, ChatAuxiliary(endpoint), 1)
        seconds = time.monotonic() - started
        await endpoint.close()
    assert seconds < LIMIT
    assert len(found.interactions) == len(TRAIN)
    assert not found.lost
    for item in found.interactions:
        assert [(reply.chosen_by, reply.text in reply.allowed) for reply in item.given] == [
            ("fallback", True)
        ]
        assert item.annotations == ()
        assert len(item.dropped_annotations) == 1
        assert item.troubled, "the reply and the record under it stay"
    kept = fallbacks_of(found.interactions)
    assert [item.role for item in kept] == ["simulator", "interpreter"] * len(TRAIN)
    assert all(problem in item.problem for item in kept), kept
    check_kept(endpoint.ledger.take(), problem)
    assert CANARY not in repr(found.interactions)


@pytest.mark.spec("PROP-05", "PROP-08")
@pytest.mark.parametrize("fault", list(TRANSPORT))
async def test_a_step_goes_on_without_its_proposals_and_says_why(fault: str) -> None:
    behave, problem = TRANSPORT[fault]
    with FaultyServer(behave) as server:
        endpoint = opened(server, problem)
        started = time.monotonic()
        made = await propose_all(ChatImprover(endpoint), PARENT, CONTEXT, 3)
        seconds = time.monotonic() - started
        await endpoint.close()
    assert seconds < LIMIT
    assert len(made) == 3
    for item in made:
        assert isinstance(item, Skip)
        assert item.kind == "failed"
        assert problem in item.reason, item.reason
    kept = endpoint.ledger.take()
    check_kept(kept, problem)
    assert len(kept) <= 3 * CALLS
    assert CANARY not in repr([(item.kind, item.reason) for item in made if isinstance(item, Skip)])


SAID: dict[str, tuple[Any, str]] = {
    "no JSON": ("I would rather talk.", "no JSON object"),
    "broken JSON": ('{"command": "propose", "code": "def run', "no JSON object"),
    "a syntax error": ({**PROPOSE, "code": "def run(task, api):\n    return ("}, "syntax error"),
    "evidence ids that do not exist": ({**PROPOSE, "evidence_ids": ["e0:0", "e7:7"]}, "unknown evidence id"),
    "one task cited twice": ({**PROPOSE, "evidence_ids": ["e0:0", "e0:1"]}, "at least two Train tasks"),
    "the same id twice": ({**PROPOSE, "evidence_ids": ["e0:0", "e0:0"]}, "two to four different"),
    "an id of a megabyte": ({**PROPOSE, "evidence_ids": ["e0:0", "e" * 200_000]}, "unknown evidence id"),
    "endless reads": (READ, "reads are used"),
    "reads of nothing": ({**READ, "field": "episode/0/reference"}, "unknown field"),
    "a program of 70 KB": ({**PROPOSE, "code": BETTER + "#" * 70_000}, "larger than"),
    "a program of 1 MB": ({**PROPOSE, "code": BETTER + "#" * (1 << 20)}, "longer than"),
}
"""What the improver says each time, and a word of the recorded reason."""


@pytest.mark.spec("PROP-05", "PROP-06", "PROP-07", "PROP-08")
@pytest.mark.parametrize("what", list(SAID))
async def test_a_bad_proposal_is_refused_by_name_within_its_calls(what: str) -> None:
    value, problem = SAID[what]
    text = value if isinstance(value, str) else json.dumps(value)
    with FaultyServer(lambda asked: said(text)) as server:
        endpoint = ChatEndpoint(server.url, "m", settings=EndpointSettings(timeout_seconds=20, attempts=1))
        [made] = await propose_all(ChatImprover(endpoint), PARENT, CONTEXT, 1)
        await endpoint.close()
        asked = len(server.asked)
    assert isinstance(made, Skip)
    assert made.kind == "failed"
    assert problem in made.reason
    assert len(made.reason) < 1000
    assert 1 <= asked <= CALLS
    kept = endpoint.ledger.take()
    assert len(kept) == asked
    assert all(len(item.reply or "") <= LONGEST_REPLY for item in kept)


@pytest.mark.spec("PROP-04", "PROP-08")
async def test_extra_fields_of_a_proposal_are_no_reason_to_refuse_it() -> None:
    text = json.dumps({**PROPOSE, "confidence": 0.9, "notes": ["x"], "nested": {"command": "skip"}})
    with FaultyServer(lambda asked: said(text)) as server:
        endpoint = ChatEndpoint(server.url, "m")
        [made] = await propose_all(ChatImprover(endpoint), PARENT, CONTEXT, 1)
        await endpoint.close()
    assert isinstance(made, Proposal)
    assert made.harness.code == BETTER


@pytest.mark.spec("FB-04", "FB-06")
@pytest.mark.parametrize(
    ("extra", "dropped"),
    [({}, ""), ({"verdict": "wrong"}, "verdict"), ({"fields": ["episode/reference"]}, "unknown")],
)
async def test_a_reading_with_extra_or_unknown_fields_is_dropped_and_named(
    extra: dict[str, Any], dropped: str
) -> None:
    def behave(asked: Asked) -> Fault:
        shown = json.loads(asked.body["messages"][-1]["content"])
        if "allowed" in shown:
            return said(json.dumps({"reply": shown["allowed"][0], "done": False}))
        note = {"reward": -1, "type": "correction", "evidence": "x", "fields": [], "hint": ""}
        return said(json.dumps({**note, **extra}))

    with FaultyServer(behave) as server:
        endpoint = ChatEndpoint(server.url, "m")
        broker = make_broker(ScriptedModel("no tags"), user_turns=1)
        found = await collect(broker, Harness(code=ASK_AND_SUBMIT), TRAIN[:1], ChatAuxiliary(endpoint), 1)
        await endpoint.close()
    [item] = found.interactions
    assert item.given[0].chosen_by == "auxiliary", "one field more in a pick does no harm"
    assert bool(item.annotations) == (dropped == "")
    assert dropped in " ".join(item.dropped_annotations)


async def test_a_fault_now_and_then_costs_nothing_but_a_repeat() -> None:
    faults = {1: hang, 3: reset, 4: answer({}, 429, Retry_After="0.05"), 6: answer({}, 500)}
    with FaultyServer(lambda asked: faults.get(asked.number) or sensible(asked)) as server:
        endpoint = ChatEndpoint(server.url, "m", settings=EndpointSettings(timeout_seconds=SHORT, attempts=5))
        broker = make_broker(ScriptedModel("no tags"), user_turns=1)
        found = await collect(broker, Harness(code=ASK_AND_SUBMIT), TRAIN, ChatAuxiliary(endpoint), 1)
        await endpoint.close()
    assert fallbacks_of(found.interactions) == ()
    kept = endpoint.ledger.take()
    assert [item.problem for item in kept] == [""] * 4
    assert sum(item.requests for item in kept) == len(server.asked) >= 7


def test_the_limits_that_the_faults_are_held_against() -> None:
    assert LONGEST_REPLY <= LONGEST_KEPT <= MAX_ANSWER_BYTES < 100 * 1000 * 1000
    assert READS < CALLS
