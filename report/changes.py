"""What an edit of a program changed, hunk by hunk: text constants, code, or documentation.

A hunk is one run of changed lines, so a rewritten paragraph counts once. A line is text when it belongs to a
constant made of strings alone or holds nothing else, documentation when it is a comment or part of a
docstring. A hunk whose code differs only inside string literals is text. Must not know whether the text
reaches the model: the dry run shows that. Nothing is executed.
"""

import ast
import difflib
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Zone = Literal["text", "code", "documentation"]
_CONTEXT: Final = 2
_PUNCTUATION: Final = frozenset(",()[]{}+:")
_SILENT: Final = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
)


@dataclass(frozen=True, slots=True)
class DiffLine:
    mark: Literal["+", "-", " ", "@"]
    text: str


@dataclass(frozen=True, slots=True)
class Hunk:
    """One run of changed lines with a little context."""

    zones: tuple[Zone, ...]
    """What it touches; empty when only blank lines changed."""
    line: int
    """Its first line in the new program, from 1."""
    lines: tuple[DiffLine, ...]

    @property
    def label(self) -> str:
        return " and ".join(self.zones) or "blank lines"


def hunks(before: str, after: str) -> tuple[Hunk, ...]:
    """The hunks between two programs, in order."""
    old, new = before.splitlines(), after.splitlines()
    old_zones, new_zones = zones(before), zones(after)
    found: list[Hunk] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        touched = {zone for zone in (*old_zones[a:b], *new_zones[c:d]) if zone is not None}
        if "code" in touched and kind == "replace":
            sides = (
                [blanked(line) for line, zone in zip(side, kinds, strict=True) if zone == "code"]
                for side, kinds in ((old[a:b], old_zones[a:b]), (new[c:d], new_zones[c:d]))
            )
            one, other = sides
            touched = (touched - {"code"}) | {"text"} if one == other else touched
        found.append(
            Hunk(
                zones=tuple(zone for zone in ("text", "code", "documentation") if zone in touched),
                line=c + 1,
                lines=(
                    *(DiffLine(" ", line) for line in old[max(0, a - _CONTEXT) : a]),
                    *(DiffLine("-", line) for line in old[a:b]),
                    *(DiffLine("+", line) for line in new[c:d]),
                    *(DiffLine(" ", line) for line in old[b : b + _CONTEXT]),
                ),
            )
        )
    return tuple(found)


def count(found: Sequence[Hunk]) -> dict[str, int]:
    """How many hunks touch text, code, and documentation; one hunk may touch several."""
    names: tuple[Zone, ...] = ("text", "code", "documentation")
    return {name: sum(name in hunk.zones for hunk in found) for name in names}


def zones(code: str) -> list[Zone | None]:
    """The zone of each line; None for a blank one. A program that does not parse is code throughout."""
    lines = code.splitlines()
    found: list[Zone | None] = ["code" if line.strip() else None for line in lines]
    try:
        tree, tokens = ast.parse(code), list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return found
    _mark(found, lines, [*_pure_text(tokens), *_constants(tree)], "text")
    _mark(found, lines, list(_docstrings(tree)), "documentation")
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#") and found[number] == "code":
            found[number] = "documentation"
    return found


def _mark(
    found: list[Zone | None], lines: Sequence[str], spans: Sequence[tuple[int, int]], zone: Zone
) -> None:
    for first, last in spans:
        for number in range(first - 1, min(last, len(found))):
            found[number] = zone if lines[number].strip() or first != last else None


def blanked(line: str) -> str:
    """A line with its string literals emptied; a line that cannot be read alone stays as it is."""
    kept: list[str] = []
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip()).readline):
            name = tokenize.tok_name[token.type]
            depth += name == "FSTRING_START"
            if name == "STRING" or (name == "FSTRING_END" and depth == 1):
                kept.append('""')
            elif depth == 0 and token.type not in _SILENT:
                kept.append(token.string)
            depth -= name == "FSTRING_END"
    except (tokenize.TokenError, SyntaxError):
        # An open bracket ends the line alone: what was read before it counts.
        return " ".join(kept)
    return " ".join(kept)


def _pure_text(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[tuple[int, int]]:
    """Lines on which nothing but string literals and punctuation stands."""
    other: set[int] = set()
    strings: list[tuple[int, int]] = []
    depth = 0
    for token in tokens:
        name = tokenize.tok_name[token.type]
        depth += name == "FSTRING_START"
        if name == "STRING" or name.startswith("FSTRING"):
            strings.append((token.start[0], token.end[0]))
        elif depth or (token.type not in _SILENT and token.string not in _PUNCTUATION):
            other.update(range(token.start[0], token.end[0] + 1))
        depth -= name == "FSTRING_END"
    for first, last in strings:
        yield from ((number, number) for number in range(first, last + 1) if number not in other)


def _constants(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _only_text(node.value):
            yield node.lineno, node.end_lineno or node.lineno


def _only_text(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return isinstance(node.value, str)
        case ast.BinOp(op=ast.Add()):
            return _only_text(node.left) and _only_text(node.right)
        case ast.List() | ast.Tuple() | ast.Set():
            return bool(node.elts) and all(_only_text(item) for item in node.elts)
        case ast.Dict():
            parts = [*node.keys, *node.values]
            return bool(parts) and all(part is not None and _only_text(part) for part in parts)
        case _:
            return False


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.lineno, first.end_lineno or first.lineno
