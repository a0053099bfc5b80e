"""Runs in the execution sandbox after `find`: keep what the question asks for."""

import re
from typing import Any

MEANS = {
    "long": "length", "size": "length", "far": "distance", "near": "distance", "close": "distance",
    "clos": "distance", "farth": "distance", "larg": "size", "heavy": "weight", "heavi": "weight",
    "old": "age", "tall": "height", "high": "height", "where": "location", "many": "count",
}  # fmt: skip
ENDINGS = ("est", "er", "ing", "ies", "es", "s")


def stems(text: str) -> set[str]:
    """The words of a text, their stems, and what columns usually call them."""
    words = set(re.findall(r"[a-z]+", text.lower()))
    words |= {word.removesuffix(end) for word in words for end in ENDINGS if len(word) - len(end) > 2}
    return words | {MEANS[word] for word in words if word in MEANS}


def about(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one table: where the name stands in the first column, the row is about it."""
    first = [item for item in found if next(iter(item["row"])) == item["column"]]
    chosen = first or found
    return [item for item in chosen if item["table"] == chosen[0]["table"]] if chosen else []


def asked_columns(found: list[dict[str, Any]], question: str, options: list[str]) -> list[str]:
    """Columns that the question names, or whose cells it or the options list; if none, all but the match."""
    names = [name for name in found[0]["row"] if name != found[0]["column"]]
    words, listed = stems(question), set(re.findall(r"[\w.-]+", question)) | set(options)
    asked = [
        name
        for name in names
        if stems(name) & words or any(item["row"].get(name) in listed for item in found)
    ]
    return asked or names


def number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("inf")


def focus(found: list[dict[str, Any]], question: str, options: list[str]) -> list[dict[str, str]]:
    """The asked columns of the rows about the name; sorted where the question asks for an extreme."""
    found = about(found)
    if not found:
        return []
    columns = asked_columns(found, question, options)
    rows = [{name: item["row"][name] for name in columns} for item in found]
    numeric = [name for name in columns if all(number(row[name]) < float("inf") for row in rows)]
    extreme = re.search(r"\b(\w+est|most|least)\b", question.lower())
    if extreme and numeric:
        falling = re.match(r"most|long|larg|high|great|big|heav|old|far|tall", extreme[1])
        rows.sort(key=lambda row: number(row[numeric[0]]), reverse=bool(falling))
    return rows
