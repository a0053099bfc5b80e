"""Reading an answer out of a text, before any comparison (DATA-04)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.answers import answer_form, normalise, parse
from verifier.task import AnswerFormat

OPTIONS = ("17p13.1", "3q21", "Xq28", "B")
PIECES = st.sampled_from(
    ["<answer>", "</answer>", "A", "B. 3q21", "1,234 bp", "rs12", "tp53", " ", "\n", "\ud800"]
)


@pytest.mark.spec("DATA-04")
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(AnswerFormat), st.lists(PIECES | st.text(max_size=20), max_size=8))
def test_no_text_makes_the_parser_raise(form: AnswerFormat, pieces: list[str]) -> None:
    text = "".join(pieces)
    stated = parse(form, text, OPTIONS)
    assert stated.format_valid == (stated.answer is not None)
    assert stated.reason
    if stated.format_valid:
        assert text.count("<answer>") == text.count("</answer>") == 1


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("B", "tags = 0"),
        ('I write "<answer>value</answer>". <answer>B</answer>', "tags = 2"),
        ("<answer>B", "unpaired tags: 1 open, 0 closed"),
        ("<answer><answer>B</answer>", "unpaired tags: 2 open, 1 closed"),
        ("</answer>B<answer>", "the closing tag comes first"),
        ("<answer> \n</answer>", "empty answer"),
        ("<ANSWER>B</ANSWER>", "tags = 0"),
    ],
)
def test_anything_but_one_pair_of_tags_is_an_invalid_format(text: str, reason: str) -> None:
    for form in AnswerFormat:
        stated = parse(form, text, OPTIONS)
        assert (stated.format_valid, stated.answer, stated.reason) == (False, None, reason)


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(
    ("content", "letter"),
    [
        ("A", "A"), ("c", "C"), (" B\n", "B"), ("17p13.1", "A"), ("3Q21", "B"),
        ("b. 3q21", "B"), ("C) xq28", "C"), ("D. B", "D"),
    ],
)  # fmt: skip
def test_a_letter_may_be_given_with_or_as_its_option(content: str, letter: str) -> None:
    stated = parse(AnswerFormat.LETTER, f"so <answer>{content}</answer>!", OPTIONS)
    assert (stated.answer, stated.reason) == (letter, "ok")


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("E", "no option E"), ("A. 3q21", "letter and text disagree"), ("A.", "not an option"),
        ("AB", "not an option"), ("A or B", "not an option"), ("(A)", "not an option"),
        ("the first", "not an option"), ("ﬆ", "not an option"),
    ],
)  # fmt: skip
def test_a_letter_with_other_text_is_an_invalid_format(content: str, reason: str) -> None:
    stated = parse(AnswerFormat.LETTER, f"<answer>{content}</answer>", OPTIONS)
    assert (stated.format_valid, stated.reason) == (False, reason)


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(
    ("content", "value", "unit"),
    [
        ("25759", 25759.0, ""), ("25,759", 25759.0, ""), ("1,234,567.5", 1234567.5, ""), ("-3", -3.0, ""),
        ("−3", -3.0, ""),
        (".5", 0.5, ""), ("5.", 5.0, ""), ("2.5e4", 25000.0, ""),
        ("25759 bp", 25759.0, "bp"), ("25759bp", 25759.0, "bp"),
        ("20 °C", 20.0, "°C"), ("12 base pairs", 12.0, "basepairs"), ("50%", 50.0, "%"),
    ],
)  # fmt: skip
def test_numbers_may_have_separators_sign_exponent_and_unit(content: str, value: float, unit: str) -> None:
    stated = parse(AnswerFormat.NUMBER, f"<answer>{content}</answer>")
    assert stated.answer is not None
    assert (float(stated.answer), stated.unit) == (value, unit)


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(
    "content",
    [
        "about 5",
        "1,23",
        "12,34,567",
        "1 2",
        "5-6",
        "nan",
        "inf",
        "1e9999",
        "0x10",
        "٣",
        "five",
        "=5",
        "5 (bp 3)",
    ],
)
def test_what_is_not_one_finite_number_is_an_invalid_format(content: str) -> None:
    assert not parse(AnswerFormat.NUMBER, f"<answer>{content}</answer>").format_valid


@settings(max_examples=60, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_python_writes_is_read_as_itself(value: float) -> None:
    assert parse(AnswerFormat.NUMBER, f"<answer>{value!r}</answer>").answer == repr(value)


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_normalising_text_twice_changes_nothing_more(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_every_format_tells_its_form_with_one_pair_of_tags() -> None:
    forms = {answer_form(form) for form in AnswerFormat}
    assert len(forms) == len(AnswerFormat)
    assert answer_form(AnswerFormat.LETTER) == "<answer>letter</answer>"
    for form in forms:
        assert form.count("<answer>") == form.count("</answer>") == 1
        assert "\n" not in form
