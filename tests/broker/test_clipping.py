"""Clipping keeps the budget, whole code points and its own results, and always ends."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.clipping import clip_observation, clip_text
from tests.fixtures.episodes import template

TEXTS = st.text(max_size=400) | st.text(alphabet="\U0001f9ec\u00e9\u0301a \n", max_size=400)


@pytest.mark.spec("HOST-05")
@settings(max_examples=150, deadline=None)
@example("\U0001f9ec" * 100, 33)
@example("a" * 400, 1)
@given(TEXTS, st.integers(0, 120))
def test_a_clipped_text_fits_and_clipping_it_again_changes_nothing(text: str, limit: int) -> None:
    clipped = clip_text(text, limit, template())
    assert template().count(clipped) <= limit
    assert clip_text(clipped, limit, template()) == clipped
    clipped.encode()  # no half of a code point
    if template().count(text) <= limit:
        assert clipped == text


def test_head_and_tail_stay_and_the_marker_says_how_much_is_gone() -> None:
    text = "\n".join(f"line {number}" for number in range(500))
    clipped = clip_text(text, 100, template())
    assert clipped.startswith("line 0\nline 1\n")
    assert clipped.endswith("line 499")
    assert "tokens left out" in clipped
    assert template().count(clipped) > 80, "the room should be used"


class Hostile:
    """A tokenizer that counts joined text as longer than its parts."""

    def count(self, text: str) -> int:
        return len(text) + 50

    def spans(self, text: str) -> list[tuple[int, int]]:
        return [(index, index + 1) for index in range(len(text))] + [(len(text), len(text))] * 50


@pytest.mark.spec("HOST-05")
def test_clipping_ends_even_when_no_text_ever_fits() -> None:
    assert clip_text("x" * 1000, 20, Hostile()) == ""


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.integers(32, 200))
def test_an_observation_fits_with_its_error(stdout: str, error: str, limit: int) -> None:
    seen_stdout, seen_error, cut = clip_observation(stdout, error, limit, template())
    assert template().count(seen_stdout) + template().count(seen_error) <= limit
    assert cut == ((seen_stdout, seen_error) != (stdout, error))


def test_a_long_output_leaves_room_for_the_end_of_the_error() -> None:
    stdout, error, cut = clip_observation(
        "row\n" * 5000, "Traceback\n" * 500 + "KeyError: 'x'", 256, template()
    )
    assert cut
    assert error.endswith("KeyError: 'x'")
    assert stdout.startswith("row")
