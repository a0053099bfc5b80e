"""What is trained on are the engine's ids, byte for byte: nothing is tokenised a second time (HOST-06)."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import rl_jobs

from broker.engine.engine import EmbeddedEngine
from broker.harness import Harness
from broker.model import Completion, Sampling, TaskModel
from broker.record import GradedEpisode
from rl.contract import RlContract
from rl.embedded.packing import plan_packs
from rl.rollout import collect, plan_attempts
from rl.rows import Row, build_rows
from rl.services import open_engine
from tests.fixtures.episodes import make_broker, release, template

CONTRACT = RlContract(prompts_per_batch=2, attempts=3)
LIMITS = {"context_tokens": 512, "completion_tokens": 32, "user_turns": 0}


def as_bytes(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


class Tape:
    """An engine that keeps, as bytes, what went in and what came out, in the order of its answers."""

    def __init__(self, model: TaskModel) -> None:
        self._model = model
        self.heard: list[bytes] = []
        self.said: list[bytes] = []
        self.logprobs: list[bytes] = []

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        heard = as_bytes(prompt_ids)
        completion = await self._model.complete(prompt_ids, sampling)
        self.heard.append(heard)
        self.said.append(as_bytes(completion.token_ids))
        self.logprobs.append(np.asarray(completion.logprobs, dtype="<f8").tobytes())
        return completion


class Babbler:
    """Says ids at random: hardly ever those that a tokenizer would choose for the same text."""

    def __init__(self) -> None:
        self._random = random.Random(5)

    async def complete(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Completion:
        size = self._random.randrange(1, 12)
        ids = (
            *(self._random.randrange(3, template().vocabulary) for _ in range(size)),
            template().end_ids[0],
        )
        return Completion(
            token_ids=ids,
            logprobs=tuple(-self._random.random() for _ in ids),
            finish_reason="stop",
        )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EmbeddedEngine]:
    opened = open_engine(rl_jobs.job(tmp_path), rl_jobs.base_model())
    yield opened
    opened.close()


async def taped(tape: Tape, step: int = 1) -> tuple[tuple[Row, ...], tuple[GradedEpisode, ...]]:
    """A batch's rows, its episodes one after the other, so that the tape has their order."""
    broker = make_broker(tape, limit=1, **LIMITS)
    attempts = plan_attempts(
        release().split("train")[:2], Harness(code=rl_jobs.guess()), CONTRACT, seed=3, step=step
    )
    rollout = await collect(broker, attempts, CONTRACT)
    return rollout.batch.rows, rollout.episodes


def same_as(tape: Tape, rows: Sequence[Row]) -> bool:
    return (
        [as_bytes(row.prompt_ids) for row in rows] == tape.heard
        and [as_bytes(row.completion_ids) for row in rows] == tape.said
        and [np.asarray(row.rollout_logprobs, dtype="<f8").tobytes() for row in rows] == tape.logprobs
        # And joined: what the trainer reads is what the engine had in its cache.
        and b"".join(as_bytes(row.prompt_ids + row.completion_ids) for row in rows)
        == b"".join(left + right for left, right in zip(tape.heard, tape.said, strict=True))
    )


@pytest.mark.spec("RL-05", "HOST-06")
async def test_rows_joined_are_byte_for_byte_what_the_embedded_engine_heard_and_said(
    engine: EmbeddedEngine,
) -> None:
    tape = Tape(engine)
    rows, _ = await taped(tape)
    assert len(rows) == 12
    assert same_as(tape, rows)


@pytest.mark.spec("RL-05", "HOST-06")
async def test_ids_that_no_tokenizer_would_choose_are_kept_as_they_came() -> None:
    tape = Tape(Babbler())
    rows, _ = await taped(tape)
    again = [as_bytes(template().encode_text(template().decode(row.completion_ids, False))) for row in rows]
    # The test could fail: tokenising the texts again gives other ids.
    assert sum(left != right for left, right in zip(again, tape.said, strict=True)) > len(rows) / 2
    assert same_as(tape, rows)


@pytest.mark.spec("RL-05", "HOST-06")
async def test_a_batch_made_of_stored_episodes_has_the_same_bytes() -> None:
    tape = Tape(Babbler())
    rows, episodes = await taped(tape)
    stored = [GradedEpisode.model_validate_json(episode.model_dump_json()) for episode in episodes]
    instances = list(dict.fromkeys(row.trajectory.instance for row in rows))
    assert same_as(tape, build_rows(stored, instances, CONTRACT.attempts).rows)


@pytest.mark.spec("RL-05", "HOST-06")
@pytest.mark.parametrize("budget", [16, 200, 10_000])
async def test_what_the_trainer_computes_are_the_engines_bytes_again(budget: int) -> None:
    tape = Tape(Babbler())
    rows, _ = await taped(tape)
    seen = 0
    for pack in plan_packs(rows, budget):
        mask = pack.attention_mask()
        for member, sources in zip(pack.members, pack.sources, strict=True):
            visible = np.flatnonzero(mask[sources[-1]])
            path = pack.token_ids[visible[np.argsort(pack.positions[visible])]]
            # The last token predicts nothing, so it is only a target.
            assert (
                as_bytes([*path, rows[member].completion_ids[-1]]) == tape.heard[member] + tape.said[member]
            )
            seen += 1
    assert seen == len(rows)
