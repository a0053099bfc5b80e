"""A record that was tampered with, or a program of chance, diverges at a place that is named."""

import functools
from typing import Any

import pytest
from replay_samples import again, changed_call, divergence, record_of

from broker.record import (
    EpisodeRecord,
)
from broker.sandbox.base import SandboxFactory
from tests.broker.test_program_contract import REACT

Tamper = Any
TAMPERED: list[tuple[str, Tamper, str]] = [
    (
        "message",
        lambda r: changed_call(r, 1, messages=_message(r, 1, 0, "You can run Perl")),
        "model call 1, message 0",
    ),
    (
        "completion",
        lambda r: changed_call(r, 0, text=r.model_calls[0].text.replace("print", "prinx")),
        "tool call 0, code",
    ),
    ("observation", lambda r: _tool(r, stdout="symbol is Zz\n"), "model call 1, message 3"),
    ("code", lambda r: _tool(r, code="print(2)"), "tool call 0, code"),
    (
        "submission",
        lambda r: r.model_copy(
            update={"submissions": (r.submissions[0].model_copy(update={"text": "<answer>Q</answer>"}),)}
        ),
        "submission 0",
    ),
    ("lost call", lambda r: r.model_copy(update={"model_calls": r.model_calls[:1]}), "submission 0"),
    ("lost tool", lambda r: r.model_copy(update={"tool_calls": ()}), "model call 1"),
    (
        "other end",
        lambda r: r.model_copy(update={"stop_reason": "no_submission", "submissions": ()}),
        "the end",
    ),
    ("fewer messages", lambda r: changed_call(r, 1, messages=r.model_calls[1].messages[:-1]), "model call 1"),
]


def _message(record: EpisodeRecord, call: int, index: int, content: str) -> Any:
    messages = list(record.model_calls[call].messages)
    messages[index] = messages[index].model_copy(update={"content": content})
    return tuple(messages)


def _tool(record: EpisodeRecord, **changes: Any) -> EpisodeRecord:
    return record.model_copy(update={"tool_calls": (record.tool_calls[0].model_copy(update=changes),)})


@functools.cache
def _react() -> dict[str, EpisodeRecord]:
    return {}


async def react(sandboxes: SandboxFactory) -> EpisodeRecord:
    """One real episode, for all tampering."""
    if "record" not in _react():
        _react()["record"] = await record_of(REACT, sandboxes=sandboxes)
    return _react()["record"]


@pytest.mark.spec("HOST-05")
@pytest.mark.parametrize(("what", "tamper", "where"), TAMPERED, ids=[name for name, _, _ in TAMPERED])
async def test_a_tampered_record_diverges_at_the_place(
    sandboxes: SandboxFactory, what: str, tamper: Tamper, where: str
) -> None:
    record = await react(sandboxes)
    assert (await again(record, REACT)).divergence is None
    found = await divergence(tamper(record), REACT)
    assert found.where == where


async def test_a_divergence_names_the_byte_and_shows_both_texts(sandboxes: SandboxFactory) -> None:
    record = await react(sandboxes)
    content = record.model_calls[0].messages[0].content
    changed = changed_call(record, 0, messages=_message(record, 0, 0, content[:8] + "Δ" + content[9:]))
    found = await divergence(changed, REACT)
    assert (found.where, found.byte) == ("model call 0, message 0", 8)
    assert content[:8] in found.recorded
    assert "Δ" in found.recorded
    assert content[:12] in found.replayed


@pytest.mark.parametrize("source", ["random.random()", "time.time_ns()", "id(object())", "os.urandom(8)"])
async def test_chance_and_time_in_a_program_are_named_as_the_divergence(source: str) -> None:
    code = (
        "import os, random, time\ndef run(task, api):\n"
        f"    note = 'lot ' + str({source})\n"
        '    notes = [{"role": "system", "content": note}, {"role": "user", "content": task["prompt"]}]\n'
        "    junk = [object() for _ in range(int(time.time_ns() % 97))]\n"
        "    api.submit(api.generate(notes))\n"
    )
    if source.startswith("id"):
        code = code.replace(
            "note = 'lot ' + str(id(object()))", "keep = object(); note = 'lot ' + str(id(keep))"
        )
    record = await record_of(code)
    found = await divergence(record, code)
    assert found.where == "model call 0, message 0"
    assert found.byte is not None
    assert found.byte >= 4
    assert found.recorded.startswith("lot ")
