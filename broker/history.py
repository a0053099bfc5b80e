"""How much tool text one prompt may hold: newest first, within two budgets and the context (HOST-05).

A tool message is one part of tool text; of a harness message only the parts that repeat an observation
are. Every part gets at most `tool_response_tokens`, all together at most `tool_history_tokens` and what
the context leaves beside a full completion. Older parts keep a stub as long as there is room. Doing it
twice changes nothing.
"""

from collections.abc import Sequence

from broker.budgets import Budgets
from broker.clipping import clip_text
from broker.provenance import ToolText
from broker.record import Clipping, Message
from broker.template import ChatTemplate

_STUB_TOKENS = 32
_CONTEXT_MARGIN = 64
"""Tokens kept free because joined text may tokenise into a few more tokens than its parts."""


def as_chat(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Role and content alone: everything else is removed before tokenisation."""
    return [{"role": message.role, "content": message.content} for message in messages]


def clip_history(
    messages: tuple[Message, ...], tool_text: ToolText, budgets: Budgets, template: ChatTemplate
) -> tuple[tuple[Message, ...], tuple[Clipping, ...]]:
    """The messages as the model may see them, and what was shortened."""
    seen = messages
    # What a cut leaves around a part (its marker) may need room itself, so cutting repeats until nothing
    # changes; every pass that changes something leaves fewer tokens of tool text.
    while (shorter := _clip_once(seen, tool_text, budgets, template)) != seen:
        seen = shorter
    clippings = tuple(
        Clipping(
            message_index=index,
            original_tokens=template.count(before.content),
            visible_tokens=template.count(after.content),
        )
        for index, (before, after) in enumerate(zip(messages, seen, strict=True))
        if before is not after
    )
    return seen, clippings


def _clip_once(
    messages: tuple[Message, ...], tool_text: ToolText, budgets: Budgets, template: ChatTemplate
) -> tuple[Message, ...]:
    parts = [_parts(message, tool_text) for message in messages]
    order = [(m, p) for m, split in enumerate(parts) for p, (_, is_tool) in enumerate(split) if is_tool]
    if not order:
        return messages
    sizes = {key: template.count(parts[key[0]][key[1]][0]) for key in order}
    remaining = min(budgets.tool_history_tokens, _room_in_context(messages, parts, budgets, template))
    reserve = sum(min(_STUB_TOKENS, size) for size in sizes.values())
    changed: set[int] = set()
    for key in reversed(order):
        message, part = key
        reserve -= min(_STUB_TOKENS, sizes[key])
        allowance = max(0, min(budgets.tool_response_tokens, remaining - reserve))
        if sizes[key] > allowance:
            parts[message][part] = (clip_text(parts[message][part][0], allowance, template), True)
            changed.add(message)
        remaining -= template.count(parts[message][part][0])
    return tuple(
        message.model_copy(update={"content": "".join(text for text, _ in parts[index])})
        if index in changed
        else message
        for index, message in enumerate(messages)
    )


def _parts(message: Message, tool_text: ToolText) -> list[tuple[str, bool]]:
    """A message's text cut into parts, each with whether it is tool text."""
    if message.source == "tool":
        return [(message.content, True)]
    # The other sources were verified to be the host's or the model's own text.
    spans = tool_text.spans(message.content) if message.source == "harness" else []
    parts: list[tuple[str, bool]] = []
    done = 0
    for start, end in spans:
        parts += [(message.content[done:start], False), (message.content[start:end], True)]
        done = end
    return [*parts, (message.content[done:], False)]


def _room_in_context(
    messages: tuple[Message, ...],
    parts: list[list[tuple[str, bool]]],
    budgets: Budgets,
    template: ChatTemplate,
) -> int:
    blanked = [
        {"role": message.role, "content": "".join(text for text, is_tool in split if not is_tool)}
        for message, split in zip(messages, parts, strict=True)
    ]
    base = len(template.encode(blanked))
    return max(0, budgets.context_tokens - budgets.completion_tokens - base - _CONTEXT_MARGIN)
