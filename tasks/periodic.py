"""Records of Val between two updates, of stand-alone model mode (SCHED-09). Must not know who evaluates."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.evaluation import Evaluation
from catalog.digest import digest_json
from rl.job_spec import PeriodicEvaluation
from tasks.session import Session
from tasks.stage import StageKey
from tasks.values import Trained

ROLE: Final = "periodic_val"


def keep_periodic(session: Session, points: Sequence[PeriodicEvaluation]) -> tuple[dict[str, Any], ...]:
    """Store the evaluations; what stands for each in the training's record."""
    kept: list[dict[str, Any]] = []
    for point in points:
        fact: dict[str, Any] = {"update": point.update, "seconds": point.seconds}
        if point.evaluation is None:
            kept.append({**fact, "lost": point.lost})
        else:
            body = point.evaluation.model_dump(mode="json")
            kept.append({**fact, "record": session.store.put_record("evaluation", 1, body).digest})
    return tuple(kept)


def record_periodic(
    session: Session, wanted: Mapping[str, Any], request: str, trained: Trained, key: StageKey
) -> None:
    """One measurement a point, again is harmless. A lost point has none, and is told."""
    for point in trained.evaluations:
        update = int(point["update"])
        if "record" not in point:
            session.progress.note(f"Val after {update} updates was lost: {point['lost']}")
            continue
        evaluation = Evaluation.model_validate(session.store.get_record(point["record"], "evaluation"))
        session.catalog.record_measurement(
            run_id=session.run_id,
            cycle=int(wanted["cycle"]),
            kind=ROLE,
            split=evaluation.split,
            harness=evaluation.harness,
            # The weights of that moment are kept nowhere; this names them.
            model=wanted["model"] if update == 0 else digest_json({"request": request, "update": update}),
            correct=evaluation.correct,
            total=evaluation.total,
            valid=evaluation.valid,
            stage_key=key.digest,
            detail={"step": update, "seconds": point["seconds"], "evaluation": point["record"]},
        )
