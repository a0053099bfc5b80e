"""Where a program's text repeats Train material, by zone (EVID-06, T03).

In code or text that reaches the model it is refused; in comments and docstrings it is a notice. Val and Test
strings anywhere are an alarm that stops the run. Must not know references: Train answers come from accepted
submissions, ids and prompts are public.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

Kind = Literal["id", "prompt", "answer", "held_out"]
_SHORTEST: Final = 4
"""Shorter strings (letters, small numbers) say nothing about where they come from."""


class Finding(BaseModel):
    """One repeated string."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    zone: Literal["code", "documentation"]
    text: str
    severity: Literal["refused", "notice", "alarm"]

    def words(self) -> str:
        """One line."""
        where = "in documentation, not sent" if self.zone == "documentation" else "in code or sent text"
        return f"{self.kind} {where}: {self.text[:80]!r}"


def scan(
    code: str,
    *,
    ids: Iterable[str] = (),
    prompts: Iterable[str] = (),
    answers: Iterable[str] = (),
    held_out: Iterable[str] = (),
    known: str = "",
) -> tuple[Finding, ...]:
    """Findings in a program that parses. What `known` (its parent) already holds is no leak."""
    documentation, rest = _zones(code)
    found: list[Finding] = []
    wanted: tuple[tuple[Kind, Iterable[str]], ...] = (
        ("id", ids),
        ("prompt", prompts),
        ("answer", map(_untagged, answers)),
        ("held_out", held_out),
    )
    for kind, strings in wanted:
        for text in sorted(set(strings)):
            if len(text) < _SHORTEST or _holds(known, text):
                continue
            zone = "code" if _holds(rest, text) else "documentation" if _holds(documentation, text) else None
            if zone is not None:
                severity = (
                    "alarm" if kind == "held_out" else "notice" if zone == "documentation" else "refused"
                )
                found.append(Finding(kind=kind, zone=zone, text=text, severity=severity))
    return tuple(found)


def _untagged(text: str) -> str:
    """What stands inside a submission's answer tags; any other text as it is."""
    inside = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return inside[1].strip() if inside else text


def _holds(haystack: str, needle: str) -> bool:
    """Whole words only, white space folded."""
    folded = " ".join(needle.split())
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(folded)}(?![A-Za-z0-9_])", haystack) is not None


def _zones(code: str) -> tuple[str, str]:
    """Comments and docstrings, and everything else (text constants included)."""
    tree = ast.parse(code)
    documentation = [token.string for token in _tokens(code) if token.type == tokenize.COMMENT]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                documentation.append(first.value.value)
                node.body = node.body[1:] or [ast.Pass()]
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    rest = [ast.unparse(tree), *texts]
    return _fold(documentation), _fold(rest)


def _tokens(code: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(code).readline))


def _fold(parts: Iterable[str]) -> str:
    return "\n".join(" ".join(part.split()) for part in parts)
