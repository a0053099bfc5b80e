"""What the model may see of a program's messages: tool text within its budgets, no forged turns (HOST-05).

A tool message is one part of tool text; of the program's and the model's texts only the parts that repeat an
observation are. Every part gets at most `tool_response_tokens`, all together at most `tool_history_tokens`
and what the context leaves beside a full completion, the newest first. Older parts keep a stub as long as
there is room. Doing it twice changes nothing, and it ends on any input.

The model's control tokens are taken apart where a text spells them, for a text must not end its own turn and
begin another that the host never issued.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.budgets import Budgets
from broker.clipping import CHARACTERS_PER_TOKEN, bounded, clip_text
from broker.errors import BudgetExhausted
from broker.provenance import Text, ToolText
from broker.record import Clipping, Message, StopReason
from broker.template import ChatTemplate

_STUB_TOKENS: Final = 32
_CONTEXT_MARGIN: Final = 64
"""Tokens kept free because joined text may tokenise into a few more tokens than its parts."""
_ALWAYS_READ: Final = 50_000
"""Characters of a prompt that are always tokenised, however small the context is."""
_PASSES: Final = 8
"""One does as a rule: what a cut leaves around a part (its marker) may need room itself."""

_Parts = list[list[tuple[str, bool]]]
"""The texts of all messages cut into parts, each with whether it is tool text."""


class Prompt(NamedTuple):
    """The messages as the model sees them, what was changed, and the ids that the engine gets."""

    messages: tuple[Message, ...]
    clippings: tuple[Clipping, ...]
    ids: tuple[int, ...]


def as_chat(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Role and content alone: everything else is removed before tokenisation."""
    return [{"role": message.role, "content": message.content} for message in messages]


def build_prompt(
    messages: tuple[Message, ...], tool_text: ToolText, budgets: Budgets, template: ChatTemplate
) -> Prompt:
    """Fit the messages. The ids may exceed the context, when what is no tool text fills it.

    Raises ValueError if the chat template refuses the messages, and `BudgetExhausted` for text so long that
    no tokenizer need be asked whether it fits.
    """
    seen = _without_control_tokens(messages, template)
    seen = tuple(
        _with_content(message, bounded(message.content, budgets.tool_response_tokens))
        if message.source == "tool"
        else message
        for message in seen
    )
    characters = sum(len(message.content) for message in seen)
    if characters > CHARACTERS_PER_TOKEN * budgets.context_tokens + _ALWAYS_READ:
        raise BudgetExhausted(StopReason.CONTEXT_BUDGET)
    ids = template.encode(as_chat(seen))
    for attempt in range(_PASSES + len(messages)):
        parts = _parts(seen, tool_text)
        if len(ids) <= budgets.context_tokens - budgets.completion_tokens and _fits(parts, budgets, template):
            break
        shorter = _shorter(seen, parts, budgets, template)
        if attempt >= _PASSES and shorter != seen:
            shorter = _without_tool_text(seen, parts)
        shorter = _without_control_tokens(shorter, template)
        if shorter == seen:
            break
        seen, ids = shorter, template.encode(as_chat(shorter))
    return Prompt(seen, _changes(messages, seen, template), ids)


def _changes(
    before: tuple[Message, ...], after: tuple[Message, ...], template: ChatTemplate
) -> tuple[Clipping, ...]:
    return tuple(
        Clipping(
            message_index=index,
            original_tokens=_tokens(old.content, template),
            visible_tokens=template.count(new.content),
            original=old.content,
        )
        for index, (old, new) in enumerate(zip(before, after, strict=True))
        if old.content != new.content
    )


def _tokens(text: str, template: ChatTemplate) -> int:
    """Tokens of what a program sent; for what is too long to be read, at least so many."""
    return len(text) // CHARACTERS_PER_TOKEN if len(text) > _ALWAYS_READ else template.count(text)


def _with_content(message: Message, content: str) -> Message:
    return message if content == message.content else message.model_copy(update={"content": content})


def _without_control_tokens(messages: tuple[Message, ...], template: ChatTemplate) -> tuple[Message, ...]:
    return tuple(_with_content(message, template.defuse(message.content)) for message in messages)


def _without_tool_text(messages: tuple[Message, ...], parts: _Parts) -> tuple[Message, ...]:
    return tuple(
        _with_content(message, "" if any(is_tool for _, is_tool in split) else message.content)
        for message, split in zip(messages, parts, strict=True)
    )


def _parts(messages: tuple[Message, ...], tool_text: ToolText) -> _Parts:
    # Task and feedback were verified to be the host's own words.
    searched = [index for index, message in enumerate(messages) if message.source in ("harness", "model")]
    texts = [Text(messages[index].content, messages[index].source == "model") for index in searched]
    spans = dict(zip(searched, tool_text.spans_of(texts), strict=True))
    return [
        [(message.content, True)] if message.source == "tool" else _cut(message.content, spans.get(index, []))
        for index, message in enumerate(messages)
    ]


def _cut(text: str, spans: list[tuple[int, int]]) -> list[tuple[str, bool]]:
    parts: list[tuple[str, bool]] = []
    done = 0
    for start, end in spans:
        parts += [(text[done:start], False), (text[start:end], True)]
        done = end
    return [*parts, (text[done:], False)]


def _fits(parts: _Parts, budgets: Budgets, template: ChatTemplate) -> bool:
    sizes = [template.count(text) for split in parts for text, is_tool in split if is_tool]
    return not sizes or (
        max(sizes) <= budgets.tool_response_tokens and sum(sizes) <= budgets.tool_history_tokens
    )


def _shorter(
    messages: tuple[Message, ...], parts: _Parts, budgets: Budgets, template: ChatTemplate
) -> tuple[Message, ...]:
    """The messages with every part of tool text cut to what it is allowed."""
    order = [(m, p) for m, split in enumerate(parts) for p, (_, is_tool) in enumerate(split) if is_tool]
    sizes = {key: template.count(parts[key[0]][key[1]][0]) for key in order}
    remaining = min(budgets.tool_history_tokens, _room_in_context(messages, parts, budgets, template))
    reserve = sum(min(_STUB_TOKENS, size) for size in sizes.values())
    texts = [[text for text, _ in split] for split in parts]
    for message, part in reversed(order):
        size = sizes[message, part]
        reserve -= min(_STUB_TOKENS, size)
        allowance = max(0, min(budgets.tool_response_tokens, remaining - reserve))
        if size > allowance:
            texts[message][part] = clip_text(texts[message][part], allowance, template)
            size = template.count(texts[message][part])
        remaining -= size
    return tuple(_with_content(message, "".join(text)) for message, text in zip(messages, texts, strict=True))


def _room_in_context(
    messages: tuple[Message, ...], parts: _Parts, budgets: Budgets, template: ChatTemplate
) -> int:
    blanked = [
        {"role": message.role, "content": "".join(text for text, is_tool in split if not is_tool)}
        for message, split in zip(messages, parts, strict=True)
    ]
    base = len(template.encode(blanked))
    return max(0, budgets.context_tokens - budgets.completion_tokens - base - _CONTEXT_MARGIN)
