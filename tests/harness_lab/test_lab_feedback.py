"""The researcher's words come from the first case that applies; the auxiliary only picks among them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from lab_samples import a_task, record, tool_call

from broker.endpoint import EndpointSettings
from broker.record import EpisodeRecord
from harness_lab.annotation import InterpretationRequest
from harness_lab.auxiliary import ChatAuxiliary, RuleAuxiliary, open_auxiliary
from harness_lab.chat import AuxiliaryError, ChatEndpoint, read_object
from harness_lab.feedback import SimulatedResearcher
from harness_lab.manner import Manner
from harness_lab.replies import WORDINGS, ReplyCase, case_of, reply_case
from tests.fixtures.episodes import ScriptedModel, attempt, make_broker, right_answer
from tests.fixtures.episodes import a_task as tiny_task
from tests.fixtures.stub_server import StubServer
from verifier.task import Verdict

RIGHT = Verdict(format_valid=True, correct=True, answer="1085", reason="equal")
WRONG = Verdict(format_valid=True, correct=False, answer="7", reason="off")
INVALID = Verdict(format_valid=False, correct=False, answer=None, reason="tags = 0")
FAILED = (tool_call(0, stdout="1"), tool_call(1, error="KeyError: 'x'"))
REPAIRED = (tool_call(0, error="KeyError: 'x'"), tool_call(1, stdout="1"))

TWO_TRIES = """
def run(task, api):
    messages = [{"role": "user", "content": task["prompt"]}]
    while True:
        text = api.generate(messages)
        reply = api.submit(text)["reply"]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": reply}]
"""


class Broken(RuleAuxiliary):
    """An auxiliary that says something else, or nothing."""

    def __init__(self, said: str | None) -> None:
        super().__init__()
        self.said = said

    async def choose_reply(self, question: str, answer: str, allowed: tuple[str, ...]) -> str:
        if self.said is None:
            raise AuxiliaryError("the endpoint is down")
        return self.said

    async def interpret(self, request: InterpretationRequest) -> Mapping[str, Any]:
        raise AuxiliaryError("the endpoint is down")


@pytest.mark.spec("FB-03")
@pytest.mark.parametrize(
    ("episode", "verdict", "case"),
    [
        (record(tools=FAILED), RIGHT, ReplyCase.ACCEPTED),
        (record(tools=FAILED), INVALID, ReplyCase.INVALID_FORMAT),
        (record(tools=FAILED), WRONG, ReplyCase.TOOL_FAILED),
        (record(tools=REPAIRED), WRONG, ReplyCase.RECONSIDER),
        (record(), WRONG, ReplyCase.RECONSIDER),
    ],
)
def test_the_first_case_that_applies_decides(
    episode: EpisodeRecord, verdict: Verdict, case: ReplyCase
) -> None:
    assert reply_case(episode, verdict) is case


@pytest.mark.spec("FB-03")
def test_each_case_offers_several_wordings_and_none_can_hold_a_reference() -> None:
    texts = [text for wordings in WORDINGS.values() for text in wordings]
    assert all(len(wordings) >= 2 for wordings in WORDINGS.values())
    assert len(set(texts)) == len(texts)
    assert not any(character.isdigit() for text in texts for character in text)
    assert all(case_of(text) is case for case, wordings in WORDINGS.items() for text in wordings)


@pytest.mark.spec("FB-04")
@pytest.mark.parametrize("said", ["The right answer is 1085.", "", None])
async def test_an_invalid_pick_falls_back_to_an_allowed_wording_and_says_so(said: str | None) -> None:
    researcher = SimulatedResearcher(Broken(said))
    reply = await researcher.reply(a_task(), record(), "7", WRONG)
    assert reply.text == WORDINGS[ReplyCase.RECONSIDER][0]
    assert researcher.given[0].chosen_by == "fallback"
    assert reply.detail["chosen_by"] == "fallback"
    assert researcher.given[0].problem


@pytest.mark.spec("FB-04")
async def test_the_rule_auxiliary_picks_an_allowed_wording_the_same_way_each_time() -> None:
    picks = [
        [
            (await SimulatedResearcher(RuleAuxiliary()).reply(a_task(f"t{n}"), record(), "7", WRONG)).text
            for n in range(9)
        ]
        for _ in range(2)
    ]
    assert picks[0] == picks[1]
    assert 1 < len(set(picks[0])) <= len(WORDINGS[ReplyCase.RECONSIDER])


@pytest.mark.spec("FB-01", "FB-02")
async def test_an_interaction_has_one_reply_and_its_reward_is_that_of_the_first_answer() -> None:
    task = tiny_task()
    broker = make_broker(ScriptedModel("I do not know.", right_answer(task)), user_turns=1)
    graded = await broker.run(
        attempt(TWO_TRIES, task, "interaction", temperature=1.0),
        researcher := SimulatedResearcher(RuleAuxiliary()),
    )
    assert [s.text for s in graded.record.submissions] == ["I do not know.", right_answer(task)]
    assert len(researcher.given) == 1
    assert case_of(graded.record.submissions[0].reply or "") is ReplyCase.INVALID_FORMAT
    assert (graded.verdict.reward, graded.verdict.format_valid) == (0.0, False)


@pytest.mark.spec("FB-01")
async def test_an_accepted_answer_ends_the_interaction_and_its_words_are_kept() -> None:
    task = tiny_task()
    broker = make_broker(ScriptedModel(right_answer(task)), user_turns=1)
    researcher = SimulatedResearcher(RuleAuxiliary())
    graded = await broker.run(attempt(TWO_TRIES, task, "interaction", temperature=1.0), researcher)
    assert graded.verdict.correct
    assert [given.accepted for given in researcher.given] == [True]


async def test_an_episode_that_starts_again_keeps_only_its_own_replies() -> None:
    researcher = SimulatedResearcher(RuleAuxiliary())
    await researcher.reply(a_task(), record(), "7", WRONG)
    await researcher.reply(a_task(), record(), "7", INVALID)
    assert [case_of(given.text) for given in researcher.given] == [ReplyCase.INVALID_FORMAT]


@pytest.mark.spec("FB-04")
async def test_a_chat_auxiliary_is_asked_with_allowed_replies_only_and_its_prose_is_tolerated() -> None:
    def chat(body: dict[str, Any]) -> str:
        shown = json.loads(body["messages"][-1]["content"])
        return f"Sure! ```json\n{json.dumps({'reply': shown['allowed'][-1]})}\n``` done"

    with StubServer(chat_policy=chat) as stub:
        auxiliary = ChatAuxiliary(ChatEndpoint(stub.url, "m"))
        researcher = SimulatedResearcher(auxiliary)
        reply = await researcher.reply(a_task(), record(), "7", WRONG)
        await auxiliary.close()
    assert reply.text == WORDINGS[ReplyCase.RECONSIDER][-1]
    assert researcher.given[0].chosen_by == "auxiliary"
    assert "off" not in json.dumps(stub.bodies[0])
    assert "temperature" in stub.bodies[0]


async def test_a_dead_chat_endpoint_is_an_auxiliary_error_and_the_interaction_goes_on() -> None:
    endpoint = ChatEndpoint("http://127.0.0.1:9/v1", "m", settings=EndpointSettings(attempts=1))
    with pytest.raises(AuxiliaryError, match="endpoint failed"):
        await endpoint.ask([{"role": "user", "content": "x"}], temperature=0)
    reply = await SimulatedResearcher(ChatAuxiliary(endpoint)).reply(a_task(), record(), "7", WRONG)
    assert reply.detail["chosen_by"] == "fallback"


@pytest.mark.spec("SCHED-07")
def test_an_auxiliary_has_a_pinned_identity() -> None:
    assert open_auxiliary(None).identity == "rules/2"
    endpoint = ChatEndpoint("http://h/v1", "m", manner=Manner(effort="low"))
    assert open_auxiliary(endpoint).identity == "2:chat:m@http://h/v1 effort=low"


@pytest.mark.parametrize("text", ["", "no json", "{", "[1]", '{"a": ' * 2000])
def test_a_reply_without_an_object_is_an_auxiliary_error(text: str) -> None:
    with pytest.raises(AuxiliaryError):
        read_object(text)
