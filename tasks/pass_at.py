"""The stage `sample`: pass@k before and after the RL phases of `mode=model`, same attempts (SCHED-09).

On Test, which chooses nothing. Must not know how pass@k is computed.
"""

import time
from typing import Any, Final, Literal

from prefect import task

from broker.pass_at import Sampled
from broker.pass_at import sample as run_sample
from catalog.store import Ref
from harness_lab.statistics import bootstrap_interval
from tasks.measure import RETRIES, put_episodes, spent_on
from tasks.session import Session, current
from tasks.stage import StageKey, run_stage
from tasks.values import Measured

VERSION: Final = 1
SPLIT: Final = "test"
Moment = Literal["pass_before", "pass_after"]


@task(name="sample", task_run_name="pass@k, {moment}", **RETRIES)
async def sample(
    moment: Moment, cycle: int, model: Ref, harness: Ref, before: Measured | None = None
) -> Measured | None:
    """Sample every Test task `schedule.pass_attempts` times and record pass@k; None where that is 0.

    `before`: the first sample, whose tasks and seeds are the same, so that the gain is task by task.
    """
    session = current()
    if session.config.schedule.pass_attempts == 0:
        return None
    return await _sample(session, moment, cycle, model, harness, before)


async def _sample(
    session: Session, moment: Moment, cycle: int, model: Ref, harness: Ref, before: Measured | None
) -> Measured:
    attempts, seed = session.config.schedule.pass_attempts, session.config.seed
    key = StageKey(
        name="sample",
        version=VERSION,
        inputs={"model": model.digest, "harness": harness.digest, **session.identities()},
        parameters={
            "run": session.run_id,
            "role": moment,
            "split": SPLIT,
            "attempts": attempts,
            "seed": seed,
        },
    )

    async def body() -> Ref:
        broker = await session.broker(model)
        started = time.monotonic()
        total = attempts * len(session.release.split(SPLIT))
        with session.progress.stage(moment, total=total, unit="episodes") as bar:
            sampled, episodes = await run_sample(
                broker,
                session.harness(harness),
                SPLIT,
                attempts=attempts,
                seed=seed,
                progress=bar.episode,
            )
        measured = Measured(
            record=session.store.put_record("sampled", 1, sampled.model_dump(mode="json")),
            episodes=put_episodes(session.store, episodes),
        )
        session.catalog.record_measurement(
            run_id=session.run_id,
            cycle=cycle,
            kind=moment,
            split=SPLIT,
            harness=sampled.harness,
            model=model.digest,
            correct=sampled.correct,
            total=sampled.total,
            valid=sampled.valid,
            stage_key=key.digest,
            detail={
                "attempts": attempts,
                "tasks": len(sampled.tallies),
                "pass_at": {str(k): value for k, value in sampled.table().items()},
                "gain": _gain(session, before, sampled),
                "sampled": measured.record.digest,
                "episodes": measured.episodes.digest,
                "seconds": round(time.monotonic() - started, 3),
                "spent": spent_on(episodes),
                "server_losses": session.losses.of(key.digest),
            },
        )
        return session.store.put_record("measured", 1, measured.model_dump(mode="json"))

    result = await run_stage(
        session.catalog, session.store, session.run_id, key, body, cycle=cycle, role=moment
    )
    return Measured.model_validate(session.store.get_record(result.output.digest, "measured"))


def _gain(session: Session, before: Measured | None, after: Sampled) -> dict[str, Any]:
    """By k, the mean gain over the first sample and its 95 % bootstrap interval, whole groups redrawn."""
    if before is None:
        return {}
    first = Sampled.model_validate(session.store.get_record(before.record.digest, "sampled"))
    groups = {tally.task_id: tally.material_group for tally in after.tallies}
    gains: dict[str, Any] = {}
    for k in after.table():
        was, now = first.of_task(k), after.of_task(k)
        differences: dict[str, list[float]] = {}
        for task_id, group in groups.items():
            differences.setdefault(group, []).append(now[task_id] - was[task_id])
        low, high = bootstrap_interval(differences, seed=after.seed)
        gains[str(k)] = {"mean": after.table()[k] - first.table()[k], "low": low, "high": high}
    return gains
