"""Recorded episodes for the tests of replay, and how they are played again."""

from typing import Any

import orjson

from broker.attempt import Mode, Reply
from broker.broker import Broker
from broker.harness import Harness
from broker.record import (
    EpisodeRecord,
    read_episode,
)
from broker.replay import Divergence, Replayed, replay
from tests.broker.test_program_contract import solver
from tests.fixtures.episodes import ScriptedModel, a_task, attempt, make_broker, release
from tests.fixtures.fake_sandbox import FakeFactory
from verifier.task import Task, Verdict

ASK = 'api.generate([{"role": "user", "content": task["prompt"]}])'


class Replying:
    async def reply(self, task: Task, record_so_far: EpisodeRecord, text: str, verdict: Verdict) -> Reply:
        return Reply(text="Look again.", accepted=False)


def broker(sandboxes: Any = None, **budgets: Any) -> Broker:
    return make_broker(ScriptedModel(policy=solver), sandboxes, **budgets)


async def record_of(
    code: str, mode: Mode = "evaluation", sandboxes: Any = None, **budgets: Any
) -> EpisodeRecord:
    researcher = Replying() if mode == "interaction" else None
    made = await broker(sandboxes, **budgets).run(attempt(code, a_task("symbol"), mode), researcher)
    return made.record


async def again(record: EpisodeRecord, code: str, sandboxes: Any = None) -> Replayed:
    assert record.given is not None
    return await replay(record, Harness(code=code), release(), record.given, sandboxes or FakeFactory())


async def divergence(record: EpisodeRecord, code: str) -> Divergence:
    found = (await again(record, code)).divergence
    assert found is not None
    return found


def stored(record: EpisodeRecord) -> EpisodeRecord:
    """As it comes back from disk."""
    return read_episode(orjson.dumps({"record": record.model_dump(mode="json"), "verdict": {}}))


def changed_call(record: EpisodeRecord, index: int, **changes: Any) -> EpisodeRecord:
    calls = list(record.model_calls)
    calls[index] = calls[index].model_copy(update=changes)
    return record.model_copy(update={"model_calls": tuple(calls)})
