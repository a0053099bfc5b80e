"""The judge over a real loopback endpoint: pinned, recorded, and an error wherever it says nothing usable."""

import json
from pathlib import Path
from typing import Any

import pytest

from broker.broker import Broker
from broker.budgets import Budgets
from broker.endpoint import EndpointSettings
from broker.errors import OURS
from broker.guidance import host_guidance
from broker.judge import ChatJudge, JudgeSettings, open_judge
from broker.limiter import Limiter
from broker.outside import expect_checkers, verifier_identity
from broker.record import GradedEpisode
from tests.fixtures.chat_answers import refused, said
from tests.fixtures.episodes import ASK_AND_SUBMIT, ScriptedModel, attempt, template
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.faulty_server import Asked, Fault, FaultyServer, answer, endless, hang, reset
from tests.verifier.test_rubric_grading import MIXED, SUBMISSION, released
from verifier.grade import Grader
from verifier.judge import JudgeError
from verifier.outside import JudgeQuestion
from verifier.release import Release, ReleaseError

GOOD = said('{"why": "clear enough", "satisfaction": 0.5}')
QUESTIONS = [JudgeQuestion("clear", "The text is clear."), JudgeQuestion("units", "Units are given.")]


def settings(url: str, **changes: Any) -> JudgeSettings:
    patience = EndpointSettings(timeout_seconds=0.5, attempts=2, patience_seconds=0.1)
    return JudgeSettings(
        **{"kind": "chat", "base_url": url, "model": "judge-1", "endpoint": patience, **changes}
    )


def quick(url: str, **changes: Any) -> ChatJudge:
    judge = ChatJudge(settings(url, **changes))
    judge.client.endpoint._back_off = 0.01  # pyright: ignore[reportPrivateUsage]
    return judge


async def test_each_criterion_is_asked_alone_at_temperature_0_and_answered_in_order():
    def behave(asked: Asked) -> Fault:
        shown = json.loads(asked.body["messages"][1]["content"])
        value = 1.0 if shown["criterion"] == "Units are given." else 0.25
        return said(json.dumps({"satisfaction": value, "why": shown["criterion"]}))

    with FaultyServer(behave) as server:
        judge = quick(server.url)
        found = await judge.judge("What dose?", "5 mg", QUESTIONS)
        await judge.close()
    assert [(item.criterion, item.judgement.satisfaction) for item in found] == [
        ("clear", 0.25),
        ("units", 1.0),
    ]
    assert {asked.body["temperature"] for asked in server.asked} == {0.0}
    assert {asked.body["model"] for asked in server.asked} == {"judge-1"}
    assert len(server.asked) == 2


async def test_an_answer_that_cannot_be_read_is_asked_for_again_and_every_answer_is_kept():
    answers = ["I think it is fine.", '{"satisfaction": 7}', '{"satisfaction": 1, "why": "now"}']
    with FaultyServer(lambda asked: said(answers[asked.number - 1])) as server:
        judge = quick(server.url)
        (found,) = await judge.judge("q", "s", QUESTIONS[:1])
        await judge.close()
    assert found.raw == tuple(answers)
    assert found.judgement.satisfaction == 1.0
    assert [len(asked.body["messages"]) for asked in server.asked] == [2, 4, 4]
    assert server.asked[1].body["messages"][2]["content"] == answers[0]


FAULTS: dict[str, Fault] = {
    "500": answer({"error": "down"}, 500),
    "429 for ever": answer({"error": "later"}, 429, Retry_After="60"),
    "401": refused("no key", 401),
    "400": refused("too long", 400),
    "time-out": hang,
    "reset": reset,
    "endless": endless,
    "empty body": answer(b""),
    "no JSON": answer(b"<html>"),
    "no choices": answer({"choices": []}),
    "empty text": said(""),
    "cut at its length": said('{"why": "a long th', "length"),
    "withheld": said("", "content_filter"),
    "prose": said("Looks good to me."),
    "out of range": said('{"satisfaction": 1.01}'),
    "negative": said('{"satisfaction": -1}'),
    "NaN": said('{"satisfaction": NaN}'),
    "a list": said("[1.0]"),
}


@pytest.mark.spec("RL-04", "HOST-07")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_failed_judge_is_an_error_of_ours_and_never_a_zero(name: str):
    with FaultyServer(lambda asked: FAULTS[name]) as server:
        judge = quick(server.url)
        with pytest.raises(JudgeError) as caught:
            await judge.judge("q", "s", QUESTIONS)
        await judge.close()
    assert isinstance(caught.value, OURS)
    assert "\n" not in str(caught.value)


async def test_the_key_is_sent_and_never_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    with FaultyServer(lambda asked: refused("bad key sk-secret", 401)) as server:
        judge = quick(server.url, api_key_variable="JUDGE_KEY")
        with pytest.raises(JudgeError) as caught:
            await judge.judge("q", "s", QUESTIONS[:1])
        await judge.close()
    assert server.asked[0].headers["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(caught.value)
    assert "JUDGE_KEY" in str(caught.value)


def broker_on(release: Release, judge: ChatJudge | None, retries: int = 0) -> Broker:
    return Broker(
        model=ScriptedModel(SUBMISSION),
        template=template(),
        sandboxes=FakeFactory(),
        grader=Grader(release),
        release=release,
        budgets=Budgets(),
        guidance=host_guidance(release.inventory()),
        limiter=Limiter(2),
        retries=retries,
        back_off=0.01,
        judge=judge,
    )


@pytest.mark.spec("RL-04")
async def test_an_episode_is_graded_with_the_judges_word_and_its_raw_answer_is_recorded_privately(
    tmp_path: Path,
):
    release = released(tmp_path / "r", MIXED, checked_by=("judge",))
    with FaultyServer(lambda asked: GOOD) as server:
        judge = quick(server.url)
        broker = broker_on(release, judge)
        graded = await broker.run(attempt(ASK_AND_SUBMIT, release.tasks[0]))
        await broker.close()
        broker.grader.close()
    assert (graded.verdict.reward, graded.verdict.correct) == (3.5 / 4, True)
    (said_outside,) = graded.outside
    assert said_outside.raw == ('{"why": "clear enough", "satisfaction": 0.5}',)
    assert (said_outside.criterion, said_outside.identity) == ("clear", judge.identity)
    assert GradedEpisode.model_validate_json(graded.model_dump_json()) == graded
    assert "clear enough" not in graded.record.model_dump_json()


@pytest.mark.spec("EVID-02")
async def test_the_private_rubric_goes_to_the_judge_and_nowhere_else(tmp_path: Path):
    release = released(tmp_path / "r", MIXED, checked_by=("judge",))
    with FaultyServer(lambda asked: GOOD) as server:
        broker = broker_on(release, quick(server.url))
        graded = await broker.run(attempt(ASK_AND_SUBMIT, release.tasks[0]))
        await broker.close()
        broker.grader.close()
    hidden = "hidden words of clear"
    assert all(hidden in asked.raw.decode() for asked in server.asked)
    assert server.asked
    model, sandboxes = broker.model, broker.sandboxes
    assert isinstance(model, ScriptedModel)
    assert isinstance(sandboxes, FakeFactory)
    elsewhere = "".join((*model.prompts, *map(str, sandboxes.frames), graded.record.model_dump_json()))
    assert "Explain it." in elsewhere
    assert "hidden words" not in elsewhere
    # Of the rubric the judge sees its own criterion alone, and no reference answer.
    assert all("hidden words of right" not in asked.raw.decode() for asked in server.asked)


async def test_a_judge_that_fails_once_costs_a_try_and_one_that_stays_down_masks_the_attempt(tmp_path: Path):
    release = released(tmp_path / "r", MIXED, checked_by=("judge",))
    with FaultyServer(lambda asked: said("no") if asked.number <= 3 else GOOD) as server:
        broker = broker_on(release, quick(server.url), retries=1)
        graded = await broker.run(attempt(ASK_AND_SUBMIT, release.tasks[0]))
        assert graded.verdict.reward == 3.5 / 4
        assert "JudgeError" in graded.record.notes["retries"][0]
        await broker.close()
    with FaultyServer(lambda asked: FAULTS["500"]) as server:
        broker = broker_on(release, quick(server.url))
        (lost,) = await broker.run_all([attempt(ASK_AND_SUBMIT, release.tasks[0])], masked_ok=True)
        assert "JudgeError" in getattr(lost, "error", "")
        await broker.close()
        broker.grader.close()


def test_a_release_with_judged_criteria_and_no_judge_is_refused_before_anything_starts(tmp_path: Path):
    release = released(tmp_path / "r", MIXED, checked_by=("judge",))
    with pytest.raises(ReleaseError, match="judge=chat") as caught:
        expect_checkers(release, judge=False)
    assert "\n" not in str(caught.value)
    expect_checkers(release, judge=True)


@pytest.mark.spec("RL-04")
def test_model_and_settings_of_the_judge_enter_the_verifiers_identity(tmp_path: Path):
    release = released(tmp_path / "r", MIXED, checked_by=("judge",))
    plain = released(tmp_path / "p", {"answer": "x"})
    known = verifier_identity(release, settings("http://a/v1").identity())
    assert known != release.verifier_identity()
    for changed in (settings("http://a/v1", model="judge-2"), settings("http://a/v1", max_tokens=99)):
        assert verifier_identity(release, changed.identity()) != known
    # How patient the host is changes no judgement, and a release without judged criteria has no judge.
    patient = settings("http://a/v1", endpoint=EndpointSettings(timeout_seconds=9))
    assert verifier_identity(release, patient.identity()) == known
    assert verifier_identity(plain, settings("http://a/v1").identity()) == plain.verifier_identity()


def test_settings_without_an_address_are_refused_and_none_opens_nothing():
    with pytest.raises(ValueError, match=r"judge\.base_url"):
        JudgeSettings(kind="chat")
    assert open_judge(JudgeSettings()) is None
