"""A chat endpoint is asked in the richest manner that it takes, and every exchange is kept."""

import json
from typing import Any

import pytest

from broker.endpoint import EndpointSettings
from harness_lab.auxiliary import ChatAuxiliary, RuleAuxiliary
from harness_lab.canary import MARK, CanaryAlarm
from harness_lab.chat import AuxiliaryError, ChatEndpoint, Shape
from harness_lab.exchange import Ledger, artifact, totals
from harness_lab.manner import Manner
from tests.fixtures.chat_answers import refused, said, sensible
from tests.fixtures.episodes import release
from tests.fixtures.faulty_server import Asked, Fault, FaultyServer

SHAPE = Shape("thing", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
ASKED = ({"role": "user", "content": "Say JSON."},)
ALLOWED = ("Good, this is what I needed.", "That settles my question, thank you.")


def picky(*not_taken: str, words: str = "Unsupported parameter") -> Any:
    """An endpoint that refuses requests with one of these in its body, and names what it refuses."""

    def behave(asked: Asked) -> Fault:
        body = json.dumps(asked.body)
        found = next((name for name in not_taken if name in body), None)
        return refused(f"{words}: '{found}'") if found else said('{"a": 1}')

    return behave


async def ask(endpoint: ChatEndpoint, times: int = 1) -> None:
    for _ in range(times):
        await endpoint.ask(ASKED, temperature=0.3, seed=5, shape=SHAPE, role="improver", subject="s")


@pytest.mark.spec("FB-05", "PROP-04")
@pytest.mark.parametrize(
    ("not_taken", "kind", "requests"),
    [
        ((), "json_schema", 1),
        (("json_schema",), "json_object", 2),
        (("json_schema", "json_object"), "none", 3),
        (("response_format",), "none", 3),
    ],
)
async def test_structured_output_is_used_where_offered_and_learnt_once(
    not_taken: tuple[str, ...], kind: str, requests: int
) -> None:
    with FaultyServer(picky(*not_taken)) as server:
        endpoint = ChatEndpoint(server.url, "m")
        await ask(endpoint, 3)
        await endpoint.close()
    assert endpoint.manner.response_format == kind
    assert len(server.asked) == requests + 2, "refusals are met once"
    sent = server.asked[-1].body.get("response_format", {"type": "none"})
    assert sent["type"] == kind
    if kind == "json_schema":
        assert sent["json_schema"] == {"name": "thing", "schema": dict(SHAPE.schema), "strict": True}
    assert len(endpoint.refusals) == requests - 1
    [*_, last] = endpoint.ledger.take()
    assert last.parameters.get("response_format", {"type": "none"})["type"] == kind


@pytest.mark.parametrize(
    ("not_taken", "learnt"),
    [
        ('"max_tokens"', {"length_parameter": "max_completion_tokens"}),
        ("temperature", {"temperature": False}),
        ("seed", {"seed": False}),
        ("reasoning_effort", {"effort": None}),
    ],
)
async def test_a_parameter_that_is_not_taken_is_left_out_and_told(
    not_taken: str, learnt: dict[str, Any]
) -> None:
    words = "Use 'max_completion_tokens'" if "max_tokens" in not_taken else "Unsupported"
    with FaultyServer(picky(not_taken, words=words)) as server:
        endpoint = ChatEndpoint(server.url, "m", manner=Manner(effort="low"))
        await ask(endpoint, 2)
        await endpoint.close()
    assert endpoint.manner == Manner(effort="low").model_copy(update=learnt)
    assert len(server.asked) == 3
    assert not_taken.strip('"') in endpoint.refusals[0]


async def test_a_refusal_for_another_reason_teaches_nothing() -> None:
    with FaultyServer(lambda asked: refused("the model is retired")) as server:
        endpoint = ChatEndpoint(server.url, "m")
        with pytest.raises(AuxiliaryError, match="retired"):
            await ask(endpoint)
        await endpoint.close()
    assert endpoint.manner == Manner()
    assert endpoint.refusals == []
    assert len(server.asked) <= 3


@pytest.mark.spec("FB-04", "FB-05")
async def test_requests_replies_tokens_and_cost_of_a_chat_auxiliary_are_kept() -> None:
    ledger = Ledger()
    with FaultyServer(sensible) as server:
        settings = EndpointSettings(prompt_price=1.0, completion_price=2.0)
        endpoint = ChatEndpoint(server.url, "m", "sk-key", settings, ledger=ledger)
        await ChatAuxiliary(endpoint).choose_reply("What melts?", "<answer>x</answer>", ALLOWED)
        await endpoint.close()
    body = artifact("id", ledger.take(), manner=endpoint.manner)
    [kept] = body["exchanges"]
    assert (kept["role"], kept["subject"], kept["problem"]) == ("simulator", "What melts?", "")
    assert json.loads(kept["messages"][1]["content"])["allowed"] == list(ALLOWED)
    assert json.loads(kept["reply"]) == {"reply": ALLOWED[-1]}
    assert (kept["prompt_tokens"], kept["completion_tokens"], kept["requests"]) == (10, 3, 1)
    assert kept["cost"] == pytest.approx(16e-6)
    assert body["totals"]["simulator"]["cost"] == pytest.approx(16e-6)
    assert body["labels"] == ["private"]
    assert body["manner"]["response_format"] == "json_schema"
    assert "sk-key" not in json.dumps(body)


@pytest.mark.spec("FB-04", "FB-05")
async def test_the_rules_keep_what_they_were_asked_and_said_too() -> None:
    ledger = Ledger()
    picked = await RuleAuxiliary(ledger).choose_reply("What melts?", "x", ALLOWED)
    [kept] = ledger.take()
    assert (kept.role, kept.answered_by, kept.prompt_tokens, kept.cost) == ("simulator", "rules/2", 0, None)
    assert json.loads(kept.reply or "") == {"reply": picked}
    assert json.loads(kept.messages[0]["content"])["allowed"] == list(ALLOWED)
    assert ledger.take() == ()


def test_totals_are_by_role() -> None:
    assert totals(()) == {}


@pytest.mark.spec("EVID-02")
def test_the_canary_form_is_that_of_a_frozen_release() -> None:
    lines = release().references_path.read_text().splitlines()
    assert lines
    assert all(MARK.fullmatch(json.loads(line)["canary"]) for line in lines)


@pytest.mark.spec("EVID-02")
async def test_a_canary_is_never_sent_and_is_an_alarm() -> None:
    canary = json.loads(release().references_path.read_text().splitlines()[0])["canary"]
    with FaultyServer(sensible) as server:
        endpoint = ChatEndpoint(server.url, "m")
        with pytest.raises(CanaryAlarm, match="about to be sent to the simulator"):
            await ChatAuxiliary(endpoint).choose_reply(f"What melts? {canary}", "x", ALLOWED)
        await endpoint.close()
    assert server.asked == []
    assert endpoint.ledger.take() == (), "what must not be sent is not kept either"
