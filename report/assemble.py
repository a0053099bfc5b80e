"""From catalog rows and stored records to the view of a run.

Owns the knowledge of how rows and records are laid out; a part that was never recorded is left out, never
guessed. Must not know how anything is drawn.
"""

import difflib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, cast

from report.data import (
    KIND_LABELS,
    Again,
    Candidate,
    Cost,
    Decision,
    DiffLine,
    FamilyScore,
    Layers,
    Measurement,
    Null,
    RunView,
    Update,
)
from report.malformed import malformed
from report.model_phases import APART, PASSES, PERIODIC, passes
from report.numbers import Paired
from report.step_view import StepRows, step_view

Row = Mapping[str, Any]
_T = TypeVar("_T")

_ORDER = (
    "phase_baseline_test",
    "step_val_parent",
    "step_val_candidate",
    "step_val_again",
    "phase_end_test",
    "rl_baseline_test",
    "export_test",
    "adaptation_batch",
    "validation_initial",
    "validation_selected",
    "evaluation",
)
_OUTER_STAGES = {"publish", "train", "validate", "consume"}
_OUTER_ROLES = {"rl_baseline_test", "export_test", *PASSES}


@dataclass(frozen=True, slots=True)
class RunRows:
    """Everything recorded of one run, as plain values."""

    run: Row
    measurements: Sequence[Row] = ()
    decisions: Sequence[Row] = ()
    stages: Sequence[Row] = ()
    updates: Sequence[Row] = ()
    """One mapping an optimiser update, with `cycle` and `update`."""
    program: Callable[[str], str] = field(default=lambda digest: "")
    """Program text of a digest; empty when it is not stored."""
    steps: Sequence[StepRows] = ()


def assemble(rows: RunRows) -> RunView:
    """The view of a run. Optional parts may be missing; a row without a required field raises KeyError."""
    run = rows.run
    run_id = str(run["run_id"])
    config = _mapping(run.get("config"))
    identities = _mapping(run.get("identities"))
    everything = sorted((_measurement(row, run_id) for row in rows.measurements), key=_position)
    measurements = [item for item in everything if item.kind not in APART]
    periodic = [item for item in everything if item.kind == PERIODIC]
    decisions = [_decision(row, rows.program) for row in rows.decisions]
    updates = [_update(row) for row in rows.updates]
    harnesses = _names("H", _parents(measurements))
    return RunView(
        run_id=run_id,
        recipe=str(run.get("recipe", "")),
        status=str(run.get("status", "")),
        detail=str(run.get("detail") or ""),
        started=_when(run.get("started")),
        seconds=_seconds(run),
        release=_release(config, identities),
        no_training=bool(config.get("no_training") or identities.get("no_training")),
        seeds=tuple(_leaves(config, lambda name: name == "seed" or name.endswith("_seed"))),
        identities=tuple(sorted((name, str(value)) for name, value in identities.items())),
        machine=tuple((name, str(value)) for name, value in _mapping(config.get("machine")).items()),
        config=json.dumps(config, indent=2, sort_keys=True, default=str, ensure_ascii=False),
        measurements=tuple(measurements),
        decisions=tuple(sorted(decisions, key=lambda item: (item.cycle, item.step))),
        updates=tuple(sorted(updates, key=lambda item: (item.cycle, item.update))),
        costs=_costs(rows.stages),
        harnesses=harnesses,
        programs=tuple((name, text) for name, digest in harnesses if (text := rows.program(digest))),
        models=_names("M", [item.model for item in measurements if item.kind != "evaluation"]),
        steps=tuple(step_view(step) for step in rows.steps),
        periodic=tuple(sorted(periodic, key=lambda item: (item.cycle, item.step or 0))),
        passes=passes(rows.measurements, run_id),
        mode=str(config.get("mode") or "cycle"),
        trigger=str(_mapping(config.get("schedule")).get("trigger") or "always_debug"),
        # A contract writes it only where it is another one.
        reward=str(_mapping(config.get("rl")).get("reward") or "verdict"),
    )


def _measurement(row: Row, run_id: str) -> Measurement:
    detail = _mapping(row.get("detail"))
    outcomes = [_mapping(item) for item in _sequence(detail.get("outcomes"))]
    candidate = _optional(int, detail.get("candidate"))
    return Measurement(
        cycle=int(row["cycle"] or 0),
        step=_optional(int, detail.get("step", row.get("step"))),
        kind=str(row["kind"]),
        split=str(row["split"]),
        harness=str(row["harness"]),
        model=str(row["model"]),
        correct=int(row["correct"]),
        total=int(row["total"]),
        valid=int(row["valid"]),
        measured_by=str(detail.get("measured_by") or row.get("run_id") or run_id),
        candidate=None if candidate is None or candidate < 0 else candidate,
        layers=layers(outcomes) if outcomes else None,
        families=_families(outcomes),
        malformed=malformed(outcomes),
        server_losses=int(detail.get("server_losses") or 0),
        outcomes={str(item["task_id"]): bool(item["correct"]) for item in outcomes},
    )


def layer(outcome: Row) -> str:
    """The one layer of `report.data.LAYERS` in which a task outcome belongs (REP-05)."""
    if outcome.get("correct"):
        return "correct"
    if not outcome.get("submitted", True):
        return "unfinished"
    if not outcome.get("format_valid"):
        return "format"
    return "tool" if outcome.get("tool_errors") else "wrong"


def layers(outcomes: Sequence[Row]) -> Layers:
    """Counts by layer, and the stop reasons of the unfinished."""
    counts = Counter(layer(item) for item in outcomes)
    reasons = Counter(_reason(item) for item in outcomes if layer(item) == "unfinished")
    return Layers(
        correct=counts["correct"],
        wrong=counts["wrong"],
        tool=counts["tool"],
        format=counts["format"],
        unfinished=counts["unfinished"],
        reasons=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )


def _reason(outcome: Row) -> str:
    if outcome.get("error"):
        return f"program error: {str(outcome['error']).partition(':')[0]}"
    return str(outcome.get("stop_reason", "unknown"))


def _families(outcomes: Sequence[Row]) -> tuple[FamilyScore, ...]:
    total = Counter(str(item.get("family", "")) for item in outcomes)
    right = Counter(str(item.get("family", "")) for item in outcomes if item.get("correct"))
    return tuple(FamilyScore(family, right[family], total[family]) for family in sorted(total))


def _position(item: Measurement) -> tuple[int, int, int, int, int]:
    order = _ORDER.index(item.kind) if item.kind in _ORDER else len(_ORDER)
    # The Val measurements of one step stand together, parent first.
    val = item.kind.startswith("step_val")
    group = _ORDER.index("step_val_parent") if val else order
    return (item.cycle or 10**6, group, (item.step or 0) if val else 0, order, item.candidate or 0)


def _decision(row: Row, program: Callable[[str], str]) -> Decision:
    body = _mapping(row["decision"])
    parent, total = str(body.get("parent", "")), _optional(int, body.get("total"))
    adopted = _optional(int, body.get("index")) if body.get("adopted", True) else None
    parent_code = program(parent)
    # `candidates` reached Val; `dropped` did not, and stand beside them with the reason.
    entries = [("compared", item) for item in _sequence(body.get("candidates"))]
    entries += [("dropped", item) for item in _sequence(body.get("dropped"))]
    proposals = {item.get("index"): item for item in map(_mapping, _sequence(body.get("proposals")))}
    candidates = [
        _candidate(status, {**proposals.get(item.get("index"), {}), **item}, total, parent_code, program)
        for status, item in ((status, _mapping(item)) for status, item in entries)
    ]
    return Decision(
        cycle=int(row["cycle"]),
        step=int(row["step"]),
        parent=parent,
        parent_correct=_optional(int, body.get("parent_correct")),
        parent_total=total,
        adopted=adopted,
        reason=str(body.get("reason") or ""),
        candidates=tuple(
            replace(item, status="adopted") if item.index == adopted and item.status == "compared" else item
            for item in sorted(candidates, key=lambda item: item.index)
        ),
        null=_null(_mapping(body.get("null"))),
        again=_again(_mapping(body.get("again"))),
    )


def _null(body: Row) -> Null | None:
    if not body:
        return None
    return Null(
        noise=float(body["noise"]),
        probability=float(body["probability"]),
        mean_gain=float(body["mean_gain"]),
        as_large=_optional(float, body.get("as_large")),
    )


def _again(table: Row) -> Again | None:
    return Again(paired=_paired(table), interval=_interval(table)) if table else None


def _paired(table: Row) -> Paired:
    return Paired(**{cell: int(table[cell]) for cell in ("both", "fixed", "broken", "neither")})


def _interval(table: Row) -> tuple[float, float] | None:
    ends = [float(end) for end in _sequence(table.get("interval"))]
    return (ends[0], ends[1]) if len(ends) == 2 else None


def _candidate(
    status: str, body: Row, total: int | None, parent_code: str, program: Callable[[str], str]
) -> Candidate:
    harness = str(body.get("harness") or "")
    code = program(harness) if harness else ""
    table = _mapping(body.get("table"))
    correct = _optional(int, body.get("correct"))
    return Candidate(
        index=int(body.get("index", -1)),
        harness=harness,
        correct=correct,
        total=total if correct is not None else None,
        status=status,
        reason=str(body.get("reason") or ""),
        hypothesis=str(body.get("hypothesis") or ""),
        rationale=str(body.get("rationale") or body.get("reason_short") or ""),
        evidence=tuple(str(item) for item in _sequence(body.get("evidence_ids"))),
        paired=_paired(table) if table else None,
        p_value=_optional(float, table.get("p_value")),
        interval=_interval(table),
        code=code,
        diff=difference(parent_code, code) if code else (),
    )


def difference(before: str, after: str) -> tuple[DiffLine, ...]:
    """Unified difference of two programs, three lines of context, without file headers."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3))[2:]
    return tuple(DiffLine(cast("Literal['+', '-', ' ', '@']", line[:1] or " "), line[1:]) for line in lines)


def _update(row: Row) -> Update:
    seconds = [row[name] for name in ("seconds_generate", "seconds_update", "seconds_sync") if name in row]
    return Update(
        cycle=int(row["cycle"]),
        update=int(row["update"]),
        reward=_optional(float, row.get("reward")),
        episodes=_optional(int, row.get("episodes")),
        grad_norm=_optional(float, row.get("gradient_norm")),
        clip_share=_optional(float, row.get("clip_share")),
        logprob_gap=_optional(float, row.get("logprob_gap_mean")),
        flat_groups=_optional(int, row.get("zero_variance_groups")),
        lost_prompts=_optional(int, row.get("lost_prompts")),
        tokens_per_second=_optional(float, row.get("tokens_per_second")),
        seconds=float(sum(seconds)) if seconds else None,
        entropy=_optional(float, row.get("entropy")),
        skipped=str(row.get("skipped") or ""),
    )


def _costs(stages: Sequence[Row]) -> tuple[Cost, ...]:
    seconds: dict[tuple[str, str], list[float]] = {}
    for row in stages:
        outer = str(row["name"]) in _OUTER_STAGES or str(row.get("role")) in _OUTER_ROLES
        phase = f"{'r' if outer else 'h'}{int(row['cycle']):04d}" if row.get("cycle") else "–"
        role = KIND_LABELS.get(str(row.get("role")), "")
        name = f"{row['name']}: {role}" if role else str(row["name"])
        seconds.setdefault((phase, name), []).append(float(row.get("seconds") or 0.0))
    return tuple(Cost(phase, name, len(values), sum(values)) for (phase, name), values in seconds.items())


def _parents(measurements: Sequence[Measurement]) -> list[str]:
    return [item.harness for item in measurements if item.kind not in ("step_val_candidate", "evaluation")]


def _names(letter: str, identities: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((f"{letter}{index}", value) for index, value in enumerate(dict.fromkeys(identities)))


def _release(config: Row, identities: Row) -> str:
    name = _mapping(config.get("release")).get("name") or config.get("release") or identities.get("release")
    return str(name or "")


def _leaves(config: Row, wanted: Callable[[str], bool], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in sorted(config.items()):
        if isinstance(value, Mapping):
            found += _leaves(cast("Row", value), wanted, f"{prefix}{name}.")
        elif wanted(name):
            found.append((prefix + name, str(value)))
    return found


def _seconds(run: Row) -> float | None:
    begun, ended = run.get("started"), run.get("finished")
    if isinstance(begun, datetime) and isinstance(ended, datetime):
        return (ended - begun).total_seconds()
    return None


def _when(value: Any) -> str:
    if not isinstance(value, datetime):
        return str(value or "")
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return f"{aware.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _mapping(value: Any) -> dict[str, Any]:
    """A JSON column as a mapping, whether the catalog holds it parsed or as text."""
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else []


def _optional(kind: Callable[[Any], _T], value: Any) -> _T | None:
    return None if value is None else kind(value)
