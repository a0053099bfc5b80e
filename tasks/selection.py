"""The stage `select`: the rule applied to complete Val evaluations, and the record of the decision.

A decision is private (it knows who was right on Val); what later proposals may know of it is the history
entry beside it (EVID-05). Must not know how programs improve, or how a page is drawn.
"""

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.artifacts import acreate_markdown_artifact
from prefect.context import FlowRunContext

from catalog.digest import short
from catalog.store import Ref
from harness_lab.history import Tried, history_entry
from harness_lab.selection import CandidateResult, Decision
from harness_lab.selection import select as select_program
from tasks.measure import RETRIES, load_evaluation
from tasks.session import current
from tasks.values import Finalist, Finalists, Measured, Selected


@task(name="select", task_run_name="select, step {step}", **RETRIES)
async def select(
    cycle: int,
    step: int,
    harness: Ref,
    finalists: Finalists,
    scores: Sequence[Measured],
    again: Measured | None = None,
) -> Selected:
    """Apply the rule to complete Val evaluations and record the decision (SEL-04..07, SEL-09).

    `scores` are the parent's and then the finalists'; `again` is a second evaluation of the parent (A/A).
    """
    session = current()
    parent, *others = (load_evaluation(session.store, measured) for measured in scores)
    reached = [entry for entry in finalists.entries if entry.executable]
    decision = select_program(
        parent,
        [
            CandidateResult(index=entry.index, evaluation=evaluation, hypothesis=entry.hypothesis)
            for entry, evaluation in zip(reached, others, strict=True)
        ],
        seed=session.config.seed,
        again=load_evaluation(session.store, again) if again is not None else None,
    )
    record = session.store.put_record("history-entry", 1, _entry(cycle, step, decision, finalists))
    session.catalog.record_decision(session.run_id, cycle, step, decision_body(decision, finalists))
    outcome = "adopted" if decision.adopted else "kept the parent:"
    session.progress.note(f"h{cycle:04d} step {step}: {outcome} {decision.reason}")
    await show(cycle, step, markdown(decision, finalists))
    chosen = next((e.program for e in reached if e.index == decision.index), harness)
    return Selected(selected=chosen, adopted=decision.adopted, record=record)


def dropped_before_val(finalists: Finalists) -> list[Finalist]:
    """Candidates that never reached Val; each carries its reason (SEL-01, SEL-02)."""
    return [entry for entry in finalists.entries if not entry.executable]


def decision_body(decision: Decision, finalists: Finalists) -> dict[str, Any]:
    """What the catalog keeps of a step."""
    return {**decision.model_dump(mode="json"), **proposals_body(finalists)}


def proposals_body(finalists: Finalists) -> dict[str, Any]:
    """The part of a decision's record that tells of proposals."""
    return {
        "dropped": [
            {
                "index": entry.index,
                "harness": entry.program.digest,
                "hypothesis": entry.hypothesis,
                "reason": entry.reason,
            }
            for entry in dropped_before_val(finalists)
        ],
        "proposals": [
            {"index": entry.index, "rationale": entry.rationale, "evidence_ids": list(entry.evidence_ids)}
            for entry in finalists.entries
        ],
        "skipped": list(finalists.skipped),
    }


def tried_before_val(finalists: Finalists) -> list[Tried]:
    """What later proposals may know of the candidates that never reached Val (EVID-05)."""
    return [
        Tried(harness=entry.program.digest, hypothesis=entry.hypothesis, outcome=entry.reason)
        for entry in dropped_before_val(finalists)
    ]


def _entry(cycle: int, step: int, decision: Decision, finalists: Finalists) -> dict[str, Any]:
    tried = tried_before_val(finalists)
    return history_entry(cycle, step, decision, tried, finalists.skipped).model_dump(mode="json")


def markdown(decision: Decision, finalists: Finalists) -> str:
    """The decision in short, for the Prefect run."""
    rows = [f"| parent | {decision.parent_correct}/{decision.total} | {short(decision.parent)} |"]
    if (again := decision.again) is not None:
        correct = again.both + again.fixed
        rows.append(f"| parent again | {correct}/{decision.total} | {again.words()} |")
    for item in decision.candidates:
        rows.append(f"| candidate {item.index} | {item.correct}/{decision.total} | {item.reason} |")
    for entry in dropped_before_val(finalists):
        rows.append(f"| candidate {entry.index} | not on Val | {entry.reason} |")
    lines = [f"**{decision.reason}**", "", "| program | Val (selection) | note |", "|---|---|---|", *rows]
    if (null := decision.null) is not None:
        lines += [
            "",
            f"Were no candidate better than the parent, a step like this one would still adopt one with "
            f"probability {null.probability:.2f}"
            + (
                f", and one that gains as much with {null.as_large:.2g}."
                if null.as_large is not None
                else "."
            ),
        ]
    return "\n".join(lines)


async def show(cycle: int, step: int, text: str) -> None:
    """A decision as a markdown artifact of the Prefect run."""
    if FlowRunContext.get() is None:
        return
    await acreate_markdown_artifact(
        text.replace("`", "'"), key=f"decision-h{cycle:04d}-{step}", description="Selection on Val"
    )
