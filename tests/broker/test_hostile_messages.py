"""Whatever value a program sends as its messages, it ends as an error of the program's, cheaply (HOST-05)."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tool_text import BUDGETS, TABLE, fit, ledger_with, pieces

from broker.errors import BudgetExhausted, HarnessError
from broker.history import as_chat, build_prompt
from broker.messages import MAX_MESSAGES, read_messages
from tests.fixtures.episodes import template


def deep(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=8)
    | st.text(max_size=30)
    | st.sampled_from(["user", "system", "assistant", "tool", "harness", "\ud800", "x" * 100_000])
    | st.builds(object)
    | st.builds(deep, st.sampled_from([40, 3_000]))
)
_HOSTILE = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["role", "content", "source", "name"]) | st.text(max_size=3), inner, max_size=5
        )
        | st.tuples(inner, inner)
    ),
    max_leaves=25,
)
_MESSAGE_LIKE = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]) | _HOSTILE, "content": _HOSTILE},
        optional={"source": _HOSTILE, "extra": _HOSTILE},
    ),
    max_size=6,
)


@pytest.mark.spec("HOST-05")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([{"role": "system", "content": "\udfff"}])
@example([{"role": "system", "content": "<|im_end|>" * 5_000}])
@example([{"role": "system", "content": "<" * 5_000 + "|im_end|>" * 500}])
@example([{"role": "tool", "content": "\n" * 50_000}])
@given(_HOSTILE | _MESSAGE_LIKE)
def test_hostile_values_end_in_an_error_of_the_program_and_nothing_else(raw: Any) -> None:
    check_hostile(raw)


@pytest.mark.spec("HOST-05")
@pytest.mark.parametrize("place", ["all", "message", "role", "content", "source", "other"])
def test_a_value_nested_without_end_is_harmless_in_every_place(place: str) -> None:
    nested = deep(50_000)
    message = {"role": "system", "content": "x", "source": "harness"}
    values = {"all": nested, "message": [nested]}
    check_hostile(values.get(place, [message | {place: nested}]))


def check_hostile(raw: Any) -> None:
    problem = ""
    try:
        seen, _, ids = fit(raw, ledger_with(TABLE, completions=("x",)))
    except (HarnessError, BudgetExhausted) as error:
        problem = str(error)
    else:
        assert template().encode(as_chat(seen)) == ids
    assert len(problem) < 400, "an error quotes no more than a little of what was sent"
    assert "\n" not in problem


@pytest.mark.spec("HOST-05")
def test_a_flood_of_messages_is_refused() -> None:
    with pytest.raises(HarnessError, match="more than 1024") as caught:
        read_messages([{"role": "system", "content": "x"}] * (MAX_MESSAGES + 1), ledger_with())
    assert caught.value.kind == "protocol"


class Growing:
    """A tokenizer for which a text never gets shorter: the worst that a real one could come near."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(template(), name)

    def count(self, text: str) -> int:
        self.calls += 1
        return template().count(text) + 100


@pytest.mark.spec("HOST-05")
def test_fitting_ends_with_a_tokenizer_that_never_agrees() -> None:
    ledger, raw = (
        ledger_with(TABLE),
        [{"role": "system", "content": pieces(TABLE, 30, " ; ")} for _ in range(5)],
    )
    read = read_messages(raw, ledger)
    tokens = Growing()
    once = build_prompt(read, ledger.tool_text, BUDGETS, tokens)  # type: ignore[arg-type]
    assert tokens.calls < 5_000
    assert build_prompt(once.messages, ledger.tool_text, BUDGETS, tokens).messages == once.messages  # type: ignore[arg-type]


class Reading(Growing):
    """Counts the characters that the tokenizer is given."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def count(self, text: str) -> int:
        self.read += len(text)
        return template().count(text)

    def spans(self, text: str) -> list[tuple[int, int]]:
        self.read += len(text)
        return template().spans(text)

    def encode(self, messages: Any) -> tuple[int, ...]:
        self.read += sum(len(message["content"]) for message in messages)
        return template().encode(messages)


@pytest.mark.spec("HOST-05")
@pytest.mark.parametrize("role", ["system", "tool"])
@pytest.mark.parametrize("text", [TABLE, "\n", "<|im_end|>", "x"])
def test_the_cost_of_a_megabyte_is_bounded_by_the_context_and_not_by_the_text(role: str, text: str) -> None:
    raw, ledger = [{"role": role, "content": text * (1_000_000 // len(text))}], ledger_with(TABLE)
    tokens = Reading()
    try:
        build_prompt(read_messages(raw, ledger), ledger.tool_text, BUDGETS, tokens)  # type: ignore[arg-type]
    except BudgetExhausted as exhausted:
        assert exhausted.reason == "context_budget"  # noqa: PT017 (a tool message is cut instead)
        assert role == "system"
    assert tokens.read < 50_000
