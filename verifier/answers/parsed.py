"""What a text states under a format, before any comparison."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """`answer` is None exactly when the format is invalid."""

    answer: str | None
    """Normalised: letter and symbols upper case, a set sorted, text folded; a number as Python writes
    the float where that is exact."""
    reason: str
    """Why the format failed, or "ok"."""
    unit: str = ""
    """Text after a number, white space removed; whether it is allowed is the reference's business."""
    shown: str = ""
    """What stood between the tags, every pair of them, shortened."""

    @property
    def format_valid(self) -> bool:
        return self.answer is not None

    def showing(self, shown: str) -> "ParsedAnswer":
        return ParsedAnswer(self.answer, self.reason, self.unit, shown)


def valid(answer: str, unit: str = "") -> ParsedAnswer:
    """A readable answer; one with nothing in it is none."""
    return ParsedAnswer(answer, "ok", unit) if answer else invalid("empty answer")


def invalid(reason: str, shown: str = "") -> ParsedAnswer:
    return ParsedAnswer(None, reason, shown=shown)
