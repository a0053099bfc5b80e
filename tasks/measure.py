"""The stage `evaluate`: one program, one model, one split, every task once (SCHED-08, SEL-03, SEL-04)."""

import gzip
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from broker.errors import OURS, ServiceRefused
from broker.evaluation import Evaluation
from broker.evaluation import evaluate as run_evaluation
from broker.record import GradedEpisode, episode_id
from catalog.digest import short
from catalog.store import Ref, Store
from report.data import KIND_LABELS
from rl.errors import TrainingError
from tasks.session import Session, current
from tasks.stage import StageKey, run_stage
from tasks.values import Measured
from verifier.task import Split

VERSION: Final = 1
_ID_DIGITS: Final = 12


async def lost(_task: object, _run: object, state: State[Any]) -> bool:
    """Whether a stage failed for a reason that may pass; a refusal would only be refused again."""
    try:
        await state.result()
    except ServiceRefused:
        return False
    except (*OURS, TrainingError):
        return True
    except BaseException:
        return False
    return False


RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [5, 20],
    "retry_condition_fn": lost,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}


def put_episodes(store: Store, episodes: list[GradedEpisode]) -> Ref:
    """Graded episodes as one compressed blob, one JSON line each."""
    return put_jsonl(store, b"\n".join(orjson.dumps(episode.model_dump(mode="json")) for episode in episodes))


def put_jsonl(store: Store, lines: bytes) -> Ref:
    """JSON lines as one compressed blob."""
    # mtime 0: equal episodes give equal bytes.
    return store.put_blob(gzip.compress(lines, compresslevel=6, mtime=0))


def episode_ids(episodes: Sequence[GradedEpisode]) -> dict[str, str]:
    """By task id, the first digits of each episode's name: enough for `rinr replay`."""
    return {
        episode.record.task_id: short(episode_id(episode.record.model_dump(mode="json")), _ID_DIGITS)
        for episode in episodes
    }


def spent_on(episodes: Sequence[GradedEpisode]) -> dict[str, int]:
    """Calls and tokens of an evaluation; of a chat endpoint the tokens are its own counts."""
    calls = [call for episode in episodes for call in episode.record.model_calls]
    return {
        "model_calls": len(calls),
        "tool_calls": sum(len(episode.record.tool_calls) for episode in episodes),
        "prompt_tokens": sum(
            call.completion.usage.prompt_tokens if call.completion.usage else len(call.prompt_ids)
            for call in calls
        ),
        "completion_tokens": sum(
            call.completion.usage.completion_tokens
            if call.completion.usage
            else len(call.completion.token_ids)
            for call in calls
        ),
    }


def usage_of(episodes: Sequence[GradedEpisode]) -> dict[str, Any] | None:
    """Tokens, requests and cost of episodes with a chat endpoint; None where token ids are known."""
    calls = [call for episode in episodes for call in episode.record.model_calls]
    bills = [call.completion.usage for call in calls if call.completion.usage is not None]
    if not bills:
        return None
    costs = [bill.cost for bill in bills if bill.cost is not None]
    return {
        "prompt_tokens": sum(bill.prompt_tokens for bill in bills),
        "completion_tokens": sum(bill.completion_tokens for bill in bills),
        "requests": sum(bill.requests for bill in bills),
        "cost": sum(costs) if costs else None,
        "reported": all(bill.reported for bill in bills),
        "served": sorted({bill.served for bill in bills}),
    }


def split_of(role: str) -> Split:
    """Which split a measurement role reads; the roles are those of SCHED-08 and SCHED-10."""
    return "val" if role.startswith(("step_val", "validation")) else "test"


def evaluation_key(
    session: Session, role: str, cycle: int, step: int, model: Ref, harness: Ref, index: int, split: Split
) -> StageKey:
    """Fresh for every comparison: run, cycle, step, role and candidate are part of it (SEL-07)."""
    return StageKey(
        name="evaluate",
        version=VERSION,
        inputs={"model": model.digest, "harness": harness.digest, **session.identities()},
        parameters={
            "run": session.run_id,
            "cycle": cycle,
            "step": step,
            "role": role,
            "candidate": index,
            "split": split,
            "seed": session.config.seed,
        },
    )


@task(name="evaluate", task_run_name="evaluate {role} {index}", **RETRIES)
async def evaluate(role: str, cycle: int, step: int, model: Ref, harness: Ref, index: int = -1) -> Measured:
    """Measure a program on the whole split of its role, and record the measurement (SCHED-08)."""
    return await measure(current(), role, cycle, step, model, harness, index, split_of(role))


async def measure(
    session: Session, role: str, cycle: int, step: int, model: Ref, harness: Ref, index: int, split: Split
) -> Measured:
    """The stage behind `evaluate`, for callers outside a flow too."""
    key = evaluation_key(session, role, cycle, step, model, harness, index, split)

    async def body() -> Ref:
        broker = await session.broker(model)
        started = time.monotonic()
        name = role if index < 0 else f"{KIND_LABELS[role]} {index}"
        with session.progress.stage(name, total=len(session.release.split(split)), unit="episodes") as bar:
            evaluation, episodes = await run_evaluation(
                broker, session.harness(harness), split, seed=session.config.seed, progress=bar.episode
            )
        measured = Measured(
            record=session.store.put_record("evaluation", 1, evaluation.model_dump(mode="json")),
            episodes=put_episodes(session.store, episodes),
        )
        record_measurement(
            session,
            role,
            cycle,
            step,
            model,
            evaluation,
            measured,
            key,
            index,
            started,
            {
                "usage": usage_of(episodes),
                "spent": spent_on(episodes),
                "episode_ids": episode_ids(episodes),
                "server_losses": session.losses.of(key.digest) or None,
            },
        )
        return session.store.put_record("measured", 1, measured.model_dump(mode="json"))

    result = await run_stage(
        session.catalog, session.store, session.run_id, key, body, cycle=cycle, step=step, role=role
    )
    return Measured.model_validate(session.store.get_record(result.output.digest, "measured"))


def record_measurement(
    session: Session,
    role: str,
    cycle: int,
    step: int,
    model: Ref,
    evaluation: Evaluation,
    measured: Measured,
    key: StageKey,
    index: int,
    started: float,
    more: Mapping[str, Any] | None = None,
) -> None:
    """One row in the catalog; `started` is `time.monotonic()` at the first episode; `more` of its detail."""
    session.catalog.record_measurement(
        run_id=session.run_id,
        cycle=cycle,
        kind=role,
        split=evaluation.split,
        harness=evaluation.harness,
        model=model.digest,
        correct=evaluation.correct,
        total=evaluation.total,
        valid=evaluation.valid,
        stage_key=key.digest,
        detail={
            "step": step,
            "candidate": index,
            "seconds": round(time.monotonic() - started, 3),
            "evaluation": measured.record.digest,
            "episodes": measured.episodes.digest,
            **{name: value for name, value in (more or {}).items() if value is not None},
        },
    )


def load_evaluation(store: Store, measured: Measured) -> Evaluation:
    """The evaluation that a stage measured."""
    return Evaluation.model_validate(store.get_record(measured.record.digest, "evaluation"))
