"""Tool text in a prompt stays within its budgets, whatever it is called."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.budgets import Budgets
from broker.history import as_chat, build_prompt
from broker.provenance import ToolText
from broker.record import Message
from tests.fixtures.episodes import template

BUDGETS = Budgets(
    context_tokens=2_000, completion_tokens=200, tool_response_tokens=150, tool_history_tokens=300
)


def rows(number: int, count: int = 60) -> str:
    return "\n".join(
        f"gene{number}x{line} chromosome {line % 23} position {line * 7919}" for line in range(count)
    )


def message(content: str, source: str = "tool", role: str = "user") -> Message:
    return Message.model_validate({"role": role, "content": content, "source": source})


def tool_tokens(messages: tuple[Message, ...], index: ToolText) -> int:
    parts = [m.content[a:b] for m in messages for a, b in index.spans(m.content)]
    return sum(template().count(part) for part in parts)


@pytest.fixture
def index() -> ToolText:
    made = ToolText(["the question"])
    for number in range(6):
        made.add(rows(number))
    return made


@pytest.mark.spec("HOST-05", "HOST-03")
def test_the_newest_responses_keep_most_and_the_record_says_what_was_cut(index: ToolText) -> None:
    messages = (message("the question", "task"), *(message(rows(number)) for number in range(4)))
    seen, clippings, _ = build_prompt(messages, index, BUDGETS, template())
    sizes = [template().count(m.content) for m in seen[1:]]
    assert sizes == sorted(sizes)
    assert sizes[-1] <= 150
    assert sum(sizes) <= 300
    assert sizes[0] > 0, "an older response keeps a stub"
    assert [clipping.message_index for clipping in clippings] == [1, 2, 3, 4]
    assert all(clipping.visible_tokens < clipping.original_tokens for clipping in clippings)
    assert seen[0] == messages[0]


@pytest.mark.spec("HOST-05")
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_renaming_an_observation_does_not_escape_the_budgets(index: ToolText, role: str) -> None:
    messages = tuple(
        message(f"My own note {number}: {rows(number)} (end)", "harness", role) for number in range(6)
    )
    seen, clippings, _ = build_prompt(messages, index, BUDGETS, template())
    assert tool_tokens(seen, index) <= 300
    assert clippings
    assert all(m.content.startswith("My own note") and m.content.endswith("(end)") for m in seen)


def test_text_of_the_program_itself_is_never_cut(index: ToolText) -> None:
    long_text = "Think about the units of each column. " * 40
    messages = (message(long_text, "harness", "system"), message(rows(0)))
    seen, _, _ = build_prompt(messages, index, BUDGETS, template())
    assert seen[0].content == long_text


def test_a_row_retrieved_by_the_program_fits_beside_the_question(index: ToolText) -> None:
    content = rows(0, 1) + "\nthe question"
    assert build_prompt((message(content, "harness"),), index, BUDGETS, template())[:2] == (
        (message(content, "harness"),),
        (),
    )


@pytest.mark.spec("HOST-05")
def test_tool_text_gives_way_so_that_the_prompt_fits_the_context(index: ToolText) -> None:
    tight = BUDGETS.model_copy(update={"context_tokens": 700, "tool_history_tokens": 5_000})
    messages = (message("word " * 150, "harness"), *(message(rows(number)) for number in range(4)))
    seen, _, _ = build_prompt(messages, index, tight, template())
    assert len(template().encode(as_chat(seen))) + 200 <= 700


_INDEX = ToolText([])
for _number in range(6):
    _INDEX.add(rows(_number, 30))


@pytest.mark.spec("HOST-05")
@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 30), st.sampled_from(["tool", "harness"])), max_size=8
    ),
    st.integers(0, 3_000),
)
def test_clipping_a_history_again_changes_nothing(kinds: list[tuple[int, int, str]], context: int) -> None:
    index = _INDEX
    budgets = BUDGETS.model_copy(update={"context_tokens": max(64, context)})
    messages = tuple(message(rows(number, count), source) for number, count, source in kinds)
    once, _, _ = build_prompt(messages, index, budgets, template())
    twice, clippings, _ = build_prompt(once, index, budgets, template())
    assert twice == once
    assert clippings == ()
    assert tool_tokens(once, index) <= 300


@pytest.mark.spec("HOST-05", "HOST-03")
def test_each_response_and_all_together_have_a_budget_of_their_own(index: ToolText) -> None:
    def sizes(*contents: str) -> list[int]:
        seen, _, _ = build_prompt(tuple(map(message, contents)), index, BUDGETS, template())
        return [template().count(m.content) for m in seen]

    long, short = "\n".join(["gene1x0 chromosome 0"] * 14), rows(2, 5)
    assert 150 < template().count(long) < 300
    assert max(sizes(long)) <= 150, "one response, though the history has room"
    assert 75 < template().count(short) <= 150
    assert sum(sizes(*[short] * 4)) <= 300, "the history, though each response is short"
