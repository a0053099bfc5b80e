"""Whether a finished harness phase hands over to RL (SCHED-06)."""

from catalog.store import Ref
from tasks.session import Session, current


def hands_over(cycle: int, inherited: Ref, selected: Ref) -> bool:
    """Trigger `always_debug`: always. `improvement`: only if the program changed and Test gained.

    Under `improvement` Test steers the schedule, so a number without bias needs another holdout; the report
    says so.
    """
    session = current()
    if session.config.schedule.trigger == "always_debug":
        return True
    before, after = (_test(session, kind, cycle) for kind in ("phase_baseline_test", "phase_end_test"))
    changed = inherited.digest != selected.digest
    if changed and after > before:
        return True
    why = f"Test went from {before} to {after}" if changed else "the program is the inherited one"
    session.progress.note(f"h{cycle:04d}: no handover to RL, for {why}")
    return False


def _test(session: Session, kind: str, cycle: int) -> int:
    """Right Test answers at a boundary of this run's phase; both boundaries cover the whole split."""
    rows = session.catalog.measurements(session.run_id)
    [found] = [row.correct for row in rows if (row.kind, row.cycle) == (kind, cycle)]
    return found
