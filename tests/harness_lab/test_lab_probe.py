"""The probe of an auxiliary: one read, one propose, one skip, and what the endpoint takes."""

import json
from collections.abc import Callable

import pytest

from broker.endpoint import EndpointSettings
from harness_lab.chat import ChatEndpoint
from harness_lab.manner import Manner
from harness_lab.probe import Probe, probe
from tests.fixtures.chat_answers import refused, said
from tests.fixtures.faulty_server import Asked, Fault, FaultyServer, hang

ORDER = ("read", "propose", "skip")


def command(asked: Asked) -> str:
    """What the protocol test asks for in this request; nothing for a plain question."""
    last = str(asked.body["messages"][-1]["content"])
    return next((name for name in ORDER if f'the command is "{name}"' in last), "")


def obeys(asked: Asked) -> Fault:
    filled = {"field": "program", "offset": 0, "code": "def run(task, api): ...", "reason": "probe"}
    return said(json.dumps({"command": command(asked), **filled}))


async def probed(
    behave: Callable[[Asked], Fault], manner: Manner | None = None
) -> tuple[Probe, FaultyServer, ChatEndpoint]:
    with FaultyServer(behave) as server:
        settings = EndpointSettings(timeout_seconds=2, attempts=1, prompt_price=1.0)
        hint = "the environment variable SOME_KEY, which is not set"
        endpoint = ChatEndpoint(server.url, "m", settings=settings, key_hint=hint, manner=manner)
        found = await probe(endpoint)
        await endpoint.close()
    return found, server, endpoint


@pytest.mark.spec("PROP-04", "SCHED-07")
async def test_a_usable_endpoint_is_told_with_its_identity_latency_tokens_and_cost() -> None:
    found, server, endpoint = await probed(obeys)
    assert found.usable
    assert [(step.command, step.outcome) for step in found.steps] == [(name, "as asked") for name in ORDER]
    assert (found.identity, found.served) == (endpoint.identity, "served-by-test")
    assert found.manner.response_format == "json_schema"
    assert found.json_alone
    assert found.effort == "accepted"
    assert 0 < found.latency < 2
    assert (found.prompt_tokens, found.completion_tokens, found.reported) == (40, 12, True)
    assert found.cost == pytest.approx(40e-6)
    assert found.requests == len(server.asked) == 4
    assert {item.role for item in endpoint.ledger.take()} == {"probe"}


async def test_the_exchange_is_one_conversation_within_the_token_limit() -> None:
    _, server, _ = await probed(obeys)
    assert [len(asked.body["messages"]) for asked in server.asked] == [2, 4, 6, 1]
    assert all(asked.body["max_tokens"] == 8192 for asked in server.asked)


async def test_what_is_not_taken_is_told_and_stays_learnt() -> None:
    def behave(asked: Asked) -> Fault:
        for name in ("json_schema", "reasoning_effort"):
            if name in json.dumps(asked.body):
                return refused(f"unknown parameter {name}")
        return obeys(asked)

    found, server, endpoint = await probed(behave, Manner(effort="high"))
    assert found.usable
    assert (found.effort, found.manner.response_format) == ("refused", "json_object")
    assert endpoint.manner == found.manner == Manner(response_format="json_object")
    assert len(found.refusals) == 2
    assert "reasoning_effort" not in server.asked[-1].body


async def test_trying_an_effort_that_is_not_configured_teaches_nothing() -> None:
    behave = lambda asked: refused("no effort") if "reasoning_effort" in asked.body else obeys(asked)  # noqa: E731
    found, _, endpoint = await probed(behave)
    assert found.usable
    assert (found.effort, found.refusals) == ("refused", ())
    assert endpoint.manner == Manner()


@pytest.mark.parametrize(
    ("behave", "word"),
    [
        (lambda asked: refused("no key", 401), "SOME_KEY, which is not set"),
        (lambda asked: refused("max_tokens is too large: 8192"), "lower auxiliary.max_tokens"),
        (lambda asked: refused("no such model", 404), "no such model"),
        (lambda asked: hang, "no whole answer within 2 s"),
        (lambda asked: said("{", "length"), "raise auxiliary.max_tokens"),
        (lambda asked: said("I am not made for this."), "follows no command"),
        (lambda asked: said('{"command": "dance"}'), "follows no command"),
    ],
)
async def test_an_unusable_endpoint_is_one_line_that_says_what_to_do(
    behave: Callable[[Asked], Fault], word: str
) -> None:
    found, _, _ = await probed(behave)
    assert not found.usable
    assert word in found.problem
    assert "\n" not in found.problem
    assert len(found.line()) < 600


async def test_a_model_that_follows_in_part_is_usable_and_each_step_says_what_it_did() -> None:
    found, _, _ = await probed(lambda asked: obeys(asked) if command(asked) == "skip" else said("Sure!"))
    assert found.usable
    assert [step.outcome for step in found.steps][-1] == "as asked"
    assert "no JSON object" in found.steps[0].outcome
    assert not found.json_alone
