"""Rubrics: weighted criteria, fixed before any rollout, and the reward R of a task (paper, equation 6).

A rubric is part of a task's private reference, so its weights enter the reference digest and the verifier's
identity. What a criterion's check sees is in `verifier/rubric_checks.py`; scripts and judges answer from
outside the grader (`verifier/outside.py`). Must not know models or sandboxes. Uses no pydantic, as the
grader's process does not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from verifier.rubric_checks import Check, RubricError, fields_of, read_check, text_field

MAX_CRITERIA: Final = 64
MAX_WEIGHT: Final = 1e6


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a good answer does."""

    name: str
    """Unique within the rubric."""
    description: str
    """Private: what is asked, in words; a judge reads it."""
    weight: float
    """At least 0; a criterion of weight 0 is measured and does not count."""
    check: Check


@dataclass(frozen=True, slots=True)
class Rubric:
    """The criteria of one task."""

    criteria: tuple[Criterion, ...]
    pass_mark: float = 1.0
    """The task counts as correct from this R on; RL sees R itself."""

    def named(self, name: str) -> Criterion:
        """KeyError for an unknown name."""
        return {criterion.name: criterion for criterion in self.criteria}[name]

    @property
    def needs_judge(self) -> bool:
        return any(criterion.check.kind == "judge" for criterion in self.criteria)

    @property
    def needs_script(self) -> bool:
        return any(criterion.check.kind == "script" for criterion in self.criteria)


def read_rubric(plain: object) -> Rubric:
    """The rubric that a reference states. Raises RubricError, which names the field and no content."""
    fields = fields_of(plain, "rubric", {"criteria"}, {"pass_mark"})
    stated = fields["criteria"]
    if not isinstance(stated, list) or not stated or len(cast("list[Any]", stated)) > MAX_CRITERIA:
        raise RubricError(f"a rubric has 1 to {MAX_CRITERIA} criteria, in a list")
    criteria = tuple(
        _read_criterion(item, f"criterion {number}")
        for number, item in enumerate(cast("list[Any]", stated), 1)
    )
    names = [criterion.name for criterion in criteria]
    if len(set(names)) != len(names):
        raise RubricError("two criteria have the same name")
    if not any(criterion.weight for criterion in criteria):
        raise RubricError("all weights are 0: give at least one criterion a weight above 0")
    pass_mark = _number(fields.get("pass_mark", 1.0), "pass_mark")
    if not 0 < pass_mark <= 1:
        raise RubricError("pass_mark is above 0 and at most 1")
    return Rubric(criteria, pass_mark)


def _read_criterion(plain: object, where: str) -> Criterion:
    fields = fields_of(plain, where, {"name", "description", "weight", "check"}, set())
    weight = _number(fields["weight"], f"{where}: weight")
    if not 0 <= weight <= MAX_WEIGHT:
        raise RubricError(f"{where}: a weight is between 0 and {MAX_WEIGHT:g}")
    return Criterion(
        name=text_field(fields, "name", where),
        description=text_field(fields, "description", where),
        weight=weight,
        check=read_check(fields["check"], where),
    )


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RubricError(f"{where} is a finite number")
    return float(value)


def reward(rubric: Rubric, satisfied: Mapping[str, float]) -> float:
    """R = sum(w v) / sum(w) over all criteria, in [0, 1] (paper, equation 6).

    `satisfied` gives v by name for exactly the rubric's criteria. Raises RubricError for a missing or unknown
    name and for a v that is not a number in [0, 1]: such a v is an error of the grading, never a 0.
    """
    names = {criterion.name for criterion in rubric.criteria}
    if set(satisfied) != names:
        odd = sorted(names.symmetric_difference(satisfied))[0]
        raise RubricError(f"criterion {odd!r} is {'not measured' if odd in names else 'unknown'}")
    for name, value in satisfied.items():
        if not 0.0 <= value <= 1.0:  # NaN compares false
            raise RubricError(f"criterion {name!r} is satisfied to {value!r}, not to a share between 0 and 1")
    # By the largest weight first, so that no choice of scale overflows or underflows.
    largest = max(criterion.weight for criterion in rubric.criteria)
    weights = {criterion.name: criterion.weight / largest for criterion in rubric.criteria}
    return math.fsum(weights[name] * satisfied[name] for name in weights) / math.fsum(weights.values())
