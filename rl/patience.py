"""When a phase of updates is given up: at the third without finite numbers, or after not one that taught.

Both trainers ask here. Must not know how an update is made.
"""

from collections.abc import Sequence
from typing import Final

from rl.errors import TrainingError
from rl.job_spec import UpdateReport

_PATIENCE: Final = 3
"""Updates without finite numbers after which the phase fails."""


def not_finite(loss: float, gradient_norm: float) -> str:
    """The numbers of an update that took no step for their sake."""
    return f"loss {loss:g}, gradient norm {gradient_norm:g}"


def refuse_third(seen: Sequence[str]) -> None:
    """Raise `TrainingError` once so many updates of the phase were not finite; `seen` are their numbers."""
    if len(seen) >= _PATIENCE:
        raise TrainingError(
            f"{_PATIENCE} updates were not finite ({'; '.join(seen)}) and took no step: lower the learning "
            "rate, or look at the rollout log-probabilities"
        )


def require_a_step(reports: Sequence[UpdateReport]) -> None:
    """Raise `TrainingError` for a finished phase in which no update taught anything.

    An export of unchanged weights would be refused as equal to its base (EXP-03): this says why they are.
    """
    if any(report.skipped is None and report.trained_tokens for report in reports):
        return
    rewards = ", ".join(f"{report.reward:.2f}" for report in reports[:5])
    lost = sum(report.skipped == "not_finite" for report in reports)
    and_lost = f", or loss or gradient were not finite ({lost} of them)" if lost else ""
    raise TrainingError(
        f"none of {len(reports)} updates took a step, for the rewards of every group were equal (Train "
        f"reward {rewards}){and_lost}: raise rl.attempts or rl.prompts_per_batch, or train under a program "
        "that is right sometimes"
    )
