"""What may be in evidence, decided by the exact type of every value in it (EVID-02).

Each type that evidence is made of is public by name; a type that is not named has no label and is refused, so
that a new type, or a subclass with one more field, is private until somebody says otherwise. A task of Val or
Test is held out whatever its type. Must not know what evidence is for.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, cast

from pydantic import BaseModel

from broker.attempt import Reply
from broker.budgets import Budgets
from broker.evaluation import Evaluation, TaskOutcome
from broker.model import Completion, Sampling, Usage
from broker.record import (
    Clipping,
    EpisodeRecord,
    Given,
    GradedEpisode,
    Left,
    Message,
    ModelCall,
    ProgramError,
    Submission,
    ToolCall,
)
from verifier.surroundings import Step, Surroundings
from verifier.task import Task, Verdict

Label = Literal["public", "private", "held_out"]
PUBLIC: Final = frozenset[Label]({"public"})
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})

LABELS: Final[Mapping[type[BaseModel], Label]] = {
    Task: "public",
    Surroundings: "public",
    Step: "public",
    EpisodeRecord: "public",
    ModelCall: "public",
    Completion: "public",
    Usage: "public",
    Sampling: "public",
    Message: "public",
    Clipping: "public",
    Left: "public",
    ToolCall: "public",
    Submission: "public",
    ProgramError: "public",
    Given: "public",
    Budgets: "public",
    Reply: "public",
    Verdict: "private",
    GradedEpisode: "private",
    TaskOutcome: "private",
    Evaluation: "private",
}
"""Types of other rooms. The lab's own say it themselves: `label: ClassVar[Label] = "public"`."""


class PrivateData(Exception):
    """Something that is not public was about to become evidence; names its type."""


def require_public(value: Any) -> None:
    """Raises PrivateData unless every part is public."""
    for part in _parts(value):
        label = _label(part)
        if label != "public":
            raise PrivateData(f"{type(part).__name__} is {label}: it never becomes evidence")


def label_of(kind: type[BaseModel]) -> Label | None:
    """The label of a type; None where nobody has said. Not inherited, for a subclass may hold more."""
    return LABELS.get(kind) or cast("Label | None", kind.__dict__.get("label"))


def _parts(value: Any) -> Iterable[BaseModel]:
    """Every model in a value, itself included."""
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, BaseModel):
            yield item
            # What pydantic was made to carry beside its fields is looked at as well.
            waiting += [*item.__dict__.values(), *(item.__pydantic_extra__ or {}).values()]
        elif isinstance(item, Mapping):
            mapping = cast("Mapping[Any, Any]", item)
            waiting += [*mapping.keys(), *mapping.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            entries = cast("Iterable[Any]", item)
            # Token ids come by the ten thousand, all of one type.
            if not set(map(type, entries)) <= _SCALARS:
                waiting += entries
        elif not isinstance(item, str | int | float | bool | None):
            raise PrivateData(f"{type(item).__name__} has no label: only named public types are evidence")


def _label(part: BaseModel) -> Label:
    if isinstance(part, Task) and part.split != "train":
        return "held_out"
    label = label_of(type(part))
    if label is None:
        raise PrivateData(f"{type(part).__name__} has no label: only named public types are evidence")
    return label
