"""Where a program's text repeats release material, by zone (EVID-06, T03).

Zones: code (text constants and what they fold or decode to included), text that reached the model in a dry
run, and documentation (comments, docstrings). Train ids, prompts and accepted answers are refused in the
first two and noticed in the third. Val and Test strings anywhere are an alarm that stops the run. Must not
know references: Train answers come from accepted submissions, ids and prompts are public.
"""

import ast
import builtins
import io
import keyword
import re
import tokenize
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from harness_lab.folding import decodings, folded_texts
from harness_lab.runs_of_words import distinctive_run
from harness_lab.syntax import ProgramSyntaxError, documentation, parse, reads_itself

Kind = Literal["id", "prompt", "answer", "held_out"]
Zone = Literal["code", "sent", "documentation"]
_SHORTEST: Final = 4
"""Shorter strings (letters, small numbers) say nothing about where they come from."""
_SHORTEST_DECODED: Final = 6
"""Short words come about by chance where texts are read backwards or decoded."""
_ORDINARY: Final = frozenset(keyword.kwlist) | frozenset(dir(builtins))
_TRAIN_RUN, _HELD_OUT_RUN = 8, 16
"""Words of one prompt, and of no other, that may not be repeated one after another. An alarm stops the run,
so it takes more of them."""
_LONGEST_SHOWN: Final = 80


class Finding(BaseModel):
    """One repeated string."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    zone: Zone
    text: str
    severity: Literal["refused", "notice", "alarm"]
    hidden: bool = False
    """It stood there encoded, reversed or in pieces."""

    def words(self) -> str:
        """One line."""
        where = {
            "documentation": "in documentation, not sent",
            "code": "in code",
            "sent": "in text that reaches the model",
        }[self.zone]
        shown = self.text if len(self.text) <= _LONGEST_SHOWN else self.text[:_LONGEST_SHOWN] + "…"
        return f"{self.kind} {where}{', disguised' if self.hidden else ''}: {shown!r}"


def scan(
    code: str,
    *,
    ids: Iterable[str] = (),
    prompts: Iterable[str] = (),
    answers: Iterable[str] = (),
    held_out: Iterable[str] = (),
    known: str = "",
    sent: Iterable[str] = (),
    public: str = "",
) -> tuple[Finding, ...]:
    """Findings in a program, one for each string and its gravest zone. Never raises.

    `held_out` holds ids and prompts of Val and Test. `sent` is what reached the model in a dry run. What
    `known` (the parent's code) or `public` (what every program is given and any text of the dry run's own
    tasks) already holds is no leak; what stands in `known`'s documentation alone is one wherever it is more
    than documentation. A text that does not parse is code as a whole.
    """
    texts = _Texts(_zones(code, tuple(sent), known, public))
    train, withheld = sorted(set(prompts)), sorted(set(held_out))
    found = [
        *texts.find("id", filter(_telling, ids)),
        *texts.find("prompt", train),
        *texts.find("answer", (text for text in map(_untagged, answers) if text not in _ORDINARY)),
        *texts.find("held_out", filter(_telling, withheld)),
        *texts.quoted("prompt", train, withheld, _TRAIN_RUN),
        *texts.quoted("held_out", withheld, train, _HELD_OUT_RUN),
    ]
    return tuple({(item.kind, item.text): item for item in reversed(found)}.values())[::-1]


class _Text:
    """A text to search in, white space folded."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lower = text.casefold()

    def holds(self, needle: str, *, any_case: bool) -> bool:
        """Whole words only."""
        haystack = self._lower if any_case else self.text
        needle = needle.casefold() if any_case else needle
        start = haystack.find(needle)
        while start >= 0:
            end = start + len(needle)
            if not _word(haystack[start - 1 : start]) and not _word(haystack[end : end + 1]):
                return True
            start = haystack.find(needle, start + 1)
        return False


@dataclass(frozen=True)
class _Place:
    """One zone; `hidden` is what its texts decode to, `excused` what may stand there."""

    zone: Zone
    plain: _Text
    hidden: _Text
    excused: _Text


@dataclass(frozen=True)
class _Texts:
    places: tuple[_Place, ...]

    def find(self, kind: Kind, wanted: Iterable[str]) -> Iterator[Finding]:
        """Whole strings, at the limits of words. Ids and prompts count in any case of letters."""
        for text in sorted(set(wanted)):
            needle = _squeeze(text)
            any_case = kind != "answer"
            if len(needle) < _SHORTEST:
                continue
            for place in self.places:
                plain = place.plain.holds(needle, any_case=any_case)
                decoded = len(needle) >= _SHORTEST_DECODED and place.hidden.holds(needle, any_case=any_case)
                if (plain or decoded) and not place.excused.holds(needle, any_case=any_case):
                    yield _finding(kind, place.zone, text, hidden=not plain)
                    break

    def quoted(
        self, kind: Kind, wanted: Sequence[str], others: Sequence[str], length: int
    ) -> Iterator[Finding]:
        """Runs of words that one prompt alone has."""
        for place in self.places:
            for text in distinctive_run(place.plain.text, wanted, (*others, place.excused.text), length):
                yield _finding(kind, place.zone, text)


def _finding(kind: Kind, zone: Zone, text: str, *, hidden: bool = False) -> Finding:
    severity: Literal["refused", "notice", "alarm"] = "notice" if zone == "documentation" else "refused"
    if kind == "held_out":
        severity = "alarm"
    return Finding(kind=kind, zone=zone, text=text, severity=severity, hidden=hidden)


def _telling(text: str) -> bool:
    """Whether it cannot be an ordinary number or word: a release may have tasks named 1024 or `copper`."""
    return len(text) >= 8 if text.isalnum() and not (_has_digit(text) and _has_letter(text)) else True


def _has_digit(text: str) -> bool:
    return any(letter.isdigit() for letter in text)


def _has_letter(text: str) -> bool:
    return any(letter.isalpha() for letter in text)


def _untagged(text: str) -> str:
    """What stands inside a submission's answer tags; any other text as it is."""
    inside = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return inside[1].strip() if inside else text.strip()


def _word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _zones(code: str, sent: Sequence[str], known: str, public: str) -> tuple[_Place, ...]:
    """The gravest zone first."""
    written, rest = _split(code)
    _, known_rest = _split(known)
    live, any_zone = _Text(_fold([*known_rest, public])), _Text(_fold([known, public]))
    return (
        _Place("sent", _Text(_fold(sent)), _Text(_fold(_decoded(sent))), live),
        _Place("code", _Text(_fold(rest)), _Text(_fold(_decoded(rest))), live),
        _Place("documentation", _Text(_fold(written)), _Text(""), any_zone),
    )


def _split(code: str) -> tuple[list[str], list[str]]:
    """Documentation, and everything else."""
    try:
        return _parts(code, parse(code))
    except (ProgramSyntaxError, RecursionError):
        return [], [code]


def _parts(code: str, tree: ast.Module) -> tuple[list[str], list[str]]:
    """Comments and docstrings, and everything else: names, numbers, texts, and what constants fold to."""
    if reads_itself(tree):
        return [], [code, *folded_texts(tree)]
    apart = documentation(tree)
    written = [*_comments(code), *apart.values()]
    rest: list[str] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if id(node) in apart:
            continue
        rest += _words(node)
        stack += ast.iter_child_nodes(node)
    bare = ast.Module(body=[node for node in tree.body if id(node) not in apart], type_ignores=[])
    return written, [*rest, *(text for text in folded_texts(bare) if text not in written)]


def _words(node: ast.AST) -> Iterator[str]:
    for _, value in ast.iter_fields(node):
        if isinstance(value, str | bytes | int | float | complex) and not isinstance(value, bool):
            yield value.decode("utf-8", "replace") if isinstance(value, bytes) else _number_or_text(value)


def _number_or_text(value: str | float | complex) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return hex(value)  # Python refuses to write very long integers in decimal
    return str(value)


def _comments(code: str) -> list[str]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return []
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _decoded(texts: Iterable[str]) -> list[str]:
    """What single texts decode to, and every word of them that looks encoded."""
    found: dict[str, None] = {}
    for text in texts:
        for piece in (text, *re.findall(r"[A-Za-z0-9+/_=-]{8,}", text)):
            found |= dict.fromkeys(decodings(piece))
    return list(found)


def readings(text: str) -> tuple[str, ...]:
    """A text with white space and letters folded, and all that it or a word of it decodes to."""
    return (_squeeze(text), *map(_squeeze, _decoded([text])))


def _fold(parts: Iterable[str]) -> str:
    return "\n".join(_squeeze(part) for part in parts)


def _squeeze(text: str) -> str:
    """White space folded, letters in one form, invisible ones left out."""
    if not text.isascii():
        text = "".join(
            letter
            for letter in unicodedata.normalize("NFKC", text)
            if unicodedata.category(letter) not in ("Cf", "Cs")
        )
    return " ".join(text.split())
