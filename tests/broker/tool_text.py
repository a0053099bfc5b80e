"""Observations, and the ledger and budgets that prompts with them are held against."""

import re
from typing import Any

from broker.budgets import Budgets
from broker.history import Prompt, build_prompt
from broker.messages import Ledger, read_messages
from broker.provenance import QUOTE
from tests.fixtures.episodes import template

PROMPT = 'Which gene holds the variant "rs0815"? Answer with its symbol.'
GUIDANCE = "You can run Python. Tables are in /lake."
BUDGETS = Budgets(
    context_tokens=1_500, completion_tokens=200, tool_response_tokens=60, tool_history_tokens=120
)
ROWS = [
    f"variant=rs{n * 7919}, gene=GENE{n * 31}, chromosome={n % 23}, position={n * 1_046_527}"
    for n in range(40)
]
TABLE = "\n".join(ROWS)


def letters(text: str) -> str:
    return "".join(re.findall(r"[^\W_]|[\U0001f000-\U0001ffff]", text)).lower()


def pieces(text: str, size: int, filler: str) -> str:
    return filler.join(text[start : start + size] for start in range(0, len(text), size))


def ledger_with(*observations: str, completions: tuple[str, ...] = ()) -> Ledger:
    ledger = Ledger(PROMPT, GUIDANCE)
    for text in completions:
        ledger.add_completion(text)
    for text in observations:
        ledger.add_observation(text, "")
    return ledger


def fit(raw: list[dict[str, Any]], ledger: Ledger, budgets: Budgets = BUDGETS) -> Prompt:
    return build_prompt(read_messages(raw, ledger), ledger.tool_text, budgets, template())


def tool_letters(text: str, observations: list[str]) -> int:
    """Letters of a text in runs of `QUOTE` that an observation holds: counted the slow and plain way."""
    mine = letters(text)
    found = [False] * len(mine)
    for observation in map(letters, observations):
        for start in range(len(mine) - QUOTE + 1):
            if mine[start : start + QUOTE] in observation:
                found[start : start + QUOTE] = [True] * QUOTE
    return sum(found)
