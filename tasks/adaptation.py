"""Stages of the adaptation protocol: score a batch, revise, choose the best (SCHED-10).

They stand where `select` stands in the co-evolution: no Val result exists until the best program is chosen.
"""

from typing import Final

from prefect import task

from catalog.store import Ref
from harness_lab.adaptation import Batch, best_program
from harness_lab.adaptation import score_batch as score
from harness_lab.evidence import Interaction
from harness_lab.history import HistoryEntry, Tried
from tasks.measure import RETRIES
from tasks.selection import proposals_body, show, tried_before_val
from tasks.session import current
from tasks.stage import StageKey, run_stage
from tasks.values import Finalists, Selected

VERSION: Final = 1
_APPLIED: Final = "applied to the next batch, not compared"


@task(name="score-batch", task_run_name="score batch {update}", **RETRIES)
async def score_batch(cycle: int, update: int, model: Ref, harness: Ref, batch: Ref) -> Ref:
    """First answers of a batch, recorded as a measurement on changing Train samples (REP-02)."""
    session = current()
    key = StageKey(
        "score-batch",
        VERSION,
        {"batch": batch.digest, "harness": harness.digest, "model": model.digest, **session.identities()},
        {"run": session.run_id, "cycle": cycle, "update": update},
    )

    async def body() -> Ref:
        record = session.store.get_record(batch.digest, "interactions")
        interactions = [Interaction.model_validate(item) for item in record["interactions"]]
        found = score(update, harness.digest, interactions, session.grader)
        return session.store.put_record("batch", 1, found.model_dump(mode="json"))

    done = await run_stage(
        session.catalog, session.store, session.run_id, key, body, cycle=cycle, step=update, role="batch"
    )
    found = _batch(done.output)
    session.catalog.record_measurement(
        run_id=session.run_id,
        cycle=cycle,
        kind="adaptation_batch",
        split="train",
        harness=harness.digest,
        model=model.digest,
        correct=found.correct,
        total=found.total,
        valid=found.valid,
        stage_key=key.digest,
        detail={"step": update, "candidate": -1},
    )
    session.progress.note(f"batch {update}: {found.correct} of {found.total} first answers right (Train)")
    return done.output


@task(name="revise", task_run_name="revise, update {update}", **RETRIES)
async def revise(cycle: int, update: int, harness: Ref, finalists: Finalists) -> Selected:
    """The program of the next batch: the first proposal that passed checks and preflight, or the same one."""
    session = current()
    chosen = next((entry for entry in finalists.entries if entry.executable), None)
    reason = f"candidate {chosen.index}: {_APPLIED}" if chosen else "no candidate passed; the program stays"
    applied = [
        {"index": chosen.index, "harness": chosen.program.digest, "hypothesis": chosen.hypothesis}
        for chosen in finalists.entries
        if chosen.executable
    ]
    body = {
        "protocol": "adaptation",
        "adopted": chosen is not None,
        "selected": (chosen.program if chosen else harness).digest,
        "index": chosen.index if chosen else None,
        "reason": reason,
        "parent": harness.digest,
        "candidates": applied,
        **proposals_body(finalists),
    }
    session.catalog.record_decision(session.run_id, cycle, update, body)
    session.progress.note(f"update {update}: {reason}")
    await show(cycle, update, f"**{reason}**")
    record = session.store.put_record(
        "history-entry", 1, _entry(cycle, update, harness, finalists).model_dump(mode="json")
    )
    return Selected(selected=chosen.program if chosen else harness, adopted=chosen is not None, record=record)


@task(name="best-of-batches", **RETRIES)
async def best_of(batches: tuple[Ref, ...], programs: tuple[Ref, ...]) -> Ref:
    """The best program on the adaptation set; `programs` ran the batches, in the same order."""
    session = current()
    found = [_batch(ref) for ref in batches]
    best = best_program(found)
    shares = ", ".join(f"{batch.correct}/{batch.total}" for batch in found if batch.harness == best)
    session.progress.note(f"best on the adaptation set: {shares} in the batches that it ran")
    return next(program for program in programs if program.digest == best)


def _entry(cycle: int, update: int, parent: Ref, finalists: Finalists) -> HistoryEntry:
    """What later proposals may know: nothing was compared, so there is no score (EVID-02)."""
    applied = [
        Tried(harness=entry.program.digest, hypothesis=entry.hypothesis, outcome=_APPLIED)
        for entry in finalists.entries
        if entry.executable
    ]
    return HistoryEntry(
        cycle=cycle,
        step=update,
        parent=parent.digest,
        parent_correct=0,
        total=0,
        adopted=bool(applied),
        tried=(*applied, *tried_before_val(finalists)),
        skipped=finalists.skipped,
    )


def _batch(ref: Ref) -> Batch:
    return Batch.model_validate(current().store.get_record(ref.digest, "batch"))
