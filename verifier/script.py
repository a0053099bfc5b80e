"""A task's own check script, as Harbor has it: how it is run, and what its reward files say.

Settings are private (they are part of the reference) and pin every test file by digest, so the verifier's
identity covers the scripts. Reward contract of Harbor 0.26: reward.json is read first, else reward.txt;
numbers only and finite; whatever else, or nothing, is an error and never a 0. Must not know sandboxes.
Uses no pydantic.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from verifier.errors import GraderLost
from verifier.rubric_checks import RubricError, fields_of

Strategy = Literal["mean", "final"]
REWARD: Final = "reward"
"""The key of a single reward; reward.txt has no other."""
MAX_KEYS: Final = 64


class RewardError(GraderLost):
    """A script left no usable reward. One line; an error of the grading, never a score."""


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One run of a test script."""

    tests: tuple[str, ...]
    """Folders below the task's private files that make up /tests, later ones over earlier ones."""
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    name: str = ""
    """Of a step; empty for a task of one step."""
    minimum: Mapping[str, float] = field(default_factory=dict[str, float])
    """The steps after it run only if its rewards reach these, by key."""


@dataclass(frozen=True, slots=True)
class Script:
    """How a task's scripts are run."""

    steps: tuple[ScriptStep, ...]
    files: Mapping[str, str]
    """Digest by path of every private file."""
    strategy: Strategy = "mean"
    """How the rewards of several steps become one."""
    memory_bytes: int | None = None
    """The task's own limit, where it is below the sandbox's."""


def read_script(plain: object) -> Script:
    """The settings that a reference states. Raises RubricError."""
    fields = fields_of(plain, "script", {"steps", "files"}, {"strategy", "memory_bytes"})
    steps, memory = fields["steps"], fields.get("memory_bytes")
    if not isinstance(steps, list) or not steps:
        raise RubricError("script: steps is a list, at least one")
    if fields.get("strategy", "mean") not in ("mean", "final"):
        raise RubricError("script: strategy is mean or final")
    if memory is not None and (not isinstance(memory, int) or isinstance(memory, bool) or memory <= 0):
        raise RubricError("script: memory_bytes is a whole number above 0")
    return Script(
        steps=tuple(
            _read_step(step, f"script step {n}") for n, step in enumerate(cast("list[Any]", steps), 1)
        ),
        files=_texts(fields["files"], "script: files"),
        strategy=fields.get("strategy", "mean"),
        memory_bytes=memory,
    )


def _read_step(plain: object, where: str) -> ScriptStep:
    fields = fields_of(plain, where, {"tests", "seconds"}, {"environment", "name", "minimum"})
    tests, seconds = fields["tests"], fields["seconds"]
    if (
        not isinstance(tests, list)
        or not tests
        or not all(isinstance(t, str) for t in cast("list[Any]", tests))
    ):
        raise RubricError(f"{where}: tests is a list of folders, at least one")
    if not _is_number(seconds) or seconds <= 0:
        raise RubricError(f"{where}: seconds is a number above 0")
    minimum: Any = fields.get("minimum", {})
    if not isinstance(minimum, dict) or not all(map(_is_number, cast("dict[str, Any]", minimum).values())):
        raise RubricError(f"{where}: minimum is numbers by key")
    return ScriptStep(
        tests=tuple(cast("list[str]", tests)),
        seconds=float(seconds),
        environment=_texts(fields.get("environment", {}), f"{where}: environment"),
        name=_text(fields.get("name", ""), f"{where}: name"),
        minimum=cast("dict[str, float]", minimum),
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RubricError(f"{where} is a text")
    return value


def _texts(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        isinstance(v, str) for v in cast("dict[str, Any]", value).values()
    ):
        raise RubricError(f"{where} is texts by name")
    return cast("dict[str, str]", value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_rewards(json_text: str | None, plain_text: str | None) -> dict[str, float]:
    """Rewards by key from the contents of reward.json and reward.txt; None where the file is not there.

    Raises RewardError when neither is there, or the one that counts is empty, unreadable or not finite.
    """
    if json_text is not None:
        return _read_json(json_text)
    if plain_text is None:
        raise RewardError("the script wrote neither reward.json nor reward.txt")
    try:
        value = float(plain_text.strip())
    except ValueError:
        what = f"{plain_text.strip()[:40]!r}" if plain_text.strip() else "empty"
        raise RewardError(f"reward.txt is {what}, not a number") from None
    if not math.isfinite(value):
        raise RewardError(f"reward.txt holds {value}, which is not finite")
    return {REWARD: value}


def _read_json(text: str) -> dict[str, float]:
    if not text.strip():
        raise RewardError("reward.json is empty")
    try:
        value: Any = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise RewardError(f"reward.json is not JSON: {str(error)[:80]}") from None
    if not isinstance(value, dict) or not value or len(cast("dict[str, Any]", value)) > MAX_KEYS:
        raise RewardError(f"reward.json is no object with 1 to {MAX_KEYS} numbers")
    for key, reward in cast("dict[str, Any]", value).items():
        if not _is_number(reward):
            raise RewardError(f"reward.json: {key[:40]!r} is not a finite number")
    return {key: float(reward) for key, reward in cast("dict[str, Any]", value).items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def reaches(step: ScriptStep, rewards: Mapping[str, float]) -> bool:
    """Whether the steps after this one run; a gated key that is missing does not reach its minimum."""
    return all(rewards.get(key, -math.inf) >= least for key, least in step.minimum.items())


def combine(strategy: Strategy, steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One reward by key from those of the steps that ran, as Harbor does it.

    `mean`: by key over the steps that ran, a missing key counting 0. `final`: the last one that ran.
    """
    if strategy == "final":
        return dict(steps[-1])
    keys = list(dict.fromkeys(key for step in steps for key in step))
    return {key: math.fsum(step.get(key, 0.0) for step in steps) / len(steps) for key in keys}


def satisfaction(rewards: Mapping[str, float], key: str) -> float:
    """v of a script criterion: the reward under the key, or without a key the mean over all of them.

    Raises RewardError for a missing key, and for a reward outside [0, 1]: it is no share.
    """
    if key and key not in rewards:
        raise RewardError(f"the script gave no reward {key!r}, only {', '.join(sorted(rewards))[:80]}")
    chosen = {key: rewards[key]} if key else rewards
    for name, value in chosen.items():
        if not 0.0 <= value <= 1.0:
            raise RewardError(f"the script's reward {name!r} is {value!r}, not between 0 and 1")
    return math.fsum(chosen.values()) / len(chosen)
