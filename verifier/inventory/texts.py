"""Text files that are no tables, and bytes that are no text: what kind, how much, one example.

Must not know tables and pickles.
"""

from typing import Final, cast

import orjson

from verifier.inventory.content import HEAD, Content

_SHOWN: Final = 80
_KEYS: Final = 12
_MAGIC: Final = (
    (b"PAR1", "Parquet"),
    (b"\x89HDF", "HDF5"),
    (b"SQLite format 3", "an SQLite database"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"%PDF", "PDF"),
    (b"\x89PNG", "a PNG picture"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
GENE_SETS: Final = frozenset({".gmt"})
JSON: Final = frozenset({".json"})
JSON_LINES: Final = frozenset({".jsonl", ".ndjson"})
SEQUENCES: Final = frozenset({".fa", ".fasta", ".faa", ".fna"})
KNOWN: Final = GENE_SETS | JSON | JSON_LINES | SEQUENCES | {".html", ".md", ".obo", ".py", ".xml", ".yaml"}
"""Suffixes of texts that are no tables, whatever tabs they hold."""


def describe_text(content: Content) -> str:
    """What a file is, by its suffix and its first bytes."""
    if not content.is_text or content.head[:4] in (b"PAR1", b"%PDF"):
        return describe_binary(content)
    if content.suffix in GENE_SETS:
        return _gene_sets(content)
    if content.suffix in JSON:
        return _json(content)
    if content.suffix in JSON_LINES:
        return _json_lines(content)
    if content.suffix == ".obo":
        terms = content.whole_lines().count(b"[Term]")
        return f"OBO ontology: {_number(content, terms)} terms"
    if content.suffix in SEQUENCES:
        return f"FASTA: {_number(content, content.whole_lines().count(b'>'))} sequences"
    lines = _lines(content)
    first = next((line for line in lines if line.strip()), "")
    number = _number(content, len(lines))
    return f"text, {number} lines" + (f", beginning {first[:_SHOWN]!r}" if first else "")


def describe_binary(content: Content) -> str:
    """Bytes that are no text."""
    kind = next((name for magic, name in _MAGIC if content.head.startswith(magic)), "binary")
    return f"not a table: {kind}, {content.size} bytes"


def _lines(content: Content) -> list[str]:
    return content.whole_lines().decode(errors="replace").splitlines()


def _gene_sets(content: Content) -> str:
    sets = [cells for line in _lines(content) if len(cells := line.split("\t")) > 2]
    if not sets:
        return "GMT file without a gene set"
    name, genes = sets[0][0], len(sets[0]) - 2
    number = _number(content, len(sets))
    form = "a line each: name, description, genes, parted by tabs"
    return f"gene sets (GMT): {number} sets, {form}; such as {name[:_SHOWN]!r} of {genes} genes"


def _json(content: Content) -> str:
    if not content.complete:
        start = content.head.lstrip()[:1]
        kind = {b"{": "an object", b"[": "a list"}.get(start, "a value")
        return f"JSON: {kind}, {content.size} bytes, longer than the {HEAD >> 20} MiB that are read"
    try:
        value: object = orjson.loads(content.head)
    except orjson.JSONDecodeError as error:
        lines = _json_lines(content)
        return f"damaged JSON: {str(error)[:_SHOWN]}" if lines.startswith("damaged") else lines
    return f"JSON: {_value(value)}"


def _json_lines(content: Content) -> str:
    lines = [line for line in content.whole_lines().split(b"\n") if line.strip()]
    if not lines:
        return "JSON lines without a line"
    try:
        value: object = orjson.loads(lines[0])
    except orjson.JSONDecodeError as error:
        return f"damaged JSON lines: line 1: {str(error)[:_SHOWN]}"
    return f"JSON lines: {_number(content, len(lines))} lines; the first is {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        keys = list(cast("dict[str, object]", value))
        return f"an object of {len(keys)} keys: {_some(keys)}" if keys else "an empty object"
    if isinstance(value, list):
        items = cast("list[object]", value)
        return f"a list of {len(items)}" + (f", the first {_value(items[0])}" if items else "")
    return f"a value of type {type(value).__name__}"


def _some(keys: list[str]) -> str:
    shown = ", ".join(key[:_SHOWN] for key in keys[:_KEYS])
    return shown if len(keys) <= _KEYS else f"{shown} and {len(keys) - _KEYS} more"


def _number(content: Content, counted: int) -> str:
    number, estimated = content.about(counted)
    return estimated or str(number)
