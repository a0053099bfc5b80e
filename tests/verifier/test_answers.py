"""Reading an answer out of a text, before any comparison (DATA-04)."""

import time
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.answers import ParsedAnswer, answer_form, normalise, parse
from verifier.answers.number import fold_unit
from verifier.task import AnswerFormat

OPTIONS = ("17p13.1", "3q21", "Xq28", "B")
PIECES = st.sampled_from(
    [
        "<answer>", "</answer>", "<ANSWER>", "A", "B. 3q21", "1,234 bp", "10^5", "rs12", "tp53", ",", ";",
        " ", "\n", "\ud800", "\u200b", "\u202e", "Ｂ", "**", "\\boxed{", "}", "<|im_end|>", "<think>",
    ]
)  # fmt: skip
FORMS = st.sampled_from([form for form in AnswerFormat if form is not AnswerFormat.FILES])
"""Files are checked and never read."""
INVISIBLE = st.text(
    st.sampled_from("\u200b\u200c\u200d\u200e\u200f\u202c\u2060\ufeff\u00ad \t\n"), max_size=3
)


def read(form: AnswerFormat, content: str) -> ParsedAnswer:
    return parse(form, f"<answer>{content}</answer>", OPTIONS)


@pytest.mark.spec("DATA-04")
@settings(max_examples=300, deadline=None)
@given(FORMS, st.lists(PIECES | st.text(max_size=20), max_size=8))
def test_no_text_makes_the_parser_raise(form: AnswerFormat, pieces: list[str]) -> None:
    text = "".join(pieces)
    stated = parse(form, text, OPTIONS)
    assert stated.format_valid == (stated.answer is not None) == (stated.reason == "ok")
    assert stated.answer != ""
    if stated.format_valid:
        assert text.count("<answer>") == text.count("</answer>") == 1


@pytest.mark.spec("DATA-04")
@settings(max_examples=100, deadline=None)
@given(FORMS, st.sampled_from(["B", "TP53", "rs12", "5", "a, b"]), st.lists(PIECES, max_size=4))
def test_a_second_pair_of_tags_in_any_spelling_makes_every_answer_invalid(
    form: AnswerFormat, content: str, pieces: list[str]
) -> None:
    around = "".join(pieces)
    for pair in (f"<answer>{content}</answer>", f"<Answer >{content}</ANSWER>"):
        assert not parse(form, f"{pair}{around}<answer>{content}</answer>", OPTIONS).format_valid


@pytest.mark.spec("DATA-04")
@settings(max_examples=150, deadline=None)
@given(
    FORMS, st.sampled_from(["B", "3q21", "TP53", "rs12", "-1.5e3", "a, b", "A. 3q21"]), INVISIBLE, INVISIBLE
)
def test_what_shows_nothing_around_an_answer_changes_nothing(
    form: AnswerFormat, content: str, before: str, after: str
) -> None:
    plain, dressed = read(form, content), read(form, f"{before}{content}{after}")
    assert (plain.answer, plain.reason, plain.unit) == (dressed.answer, dressed.reason, dressed.unit)


@pytest.mark.spec("DATA-04")
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_a_letter_is_only_ever_one_of_the_options(content: str) -> None:
    assert read(AnswerFormat.LETTER, content).answer in (None, "A", "B", "C", "D")


@pytest.mark.spec("DATA-04")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=6), st.data())
def test_an_options_own_text_states_it_or_nothing(options: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(options) - 1))
    stated = parse(AnswerFormat.LETTER, f"<answer>{options[place]}</answer>", options)
    if stated.answer is not None and len(normalise(options[place])) != 1:
        assert normalise(options["ABCDEF".index(stated.answer)]) == normalise(options[place])


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(
    ("content", "letter"),
    [
        ("A", "A"), ("c", "C"), (" B\n", "B"), ("17p13.1", "A"), ("3Q21", "B"),
        ("b. 3q21", "B"), ("C) xq28", "C"), ("D. B", "D"), ("Ｂ", "B"),
    ],
)  # fmt: skip
def test_a_letter_may_be_given_with_or_as_its_option(content: str, letter: str) -> None:
    stated = parse(AnswerFormat.LETTER, f"so <answer>{content}</answer>!", OPTIONS)
    assert (stated.answer, stated.reason) == (letter, "ok")


@pytest.mark.spec("DATA-04")
def test_an_option_of_one_character_can_be_given_as_its_text() -> None:
    numbers = ("7", "5", "X")
    assert [read_numbers(content, numbers) for content in ("5", "7", "x", "B")] == ["B", "A", "C", "B"]


def read_numbers(content: str, options: tuple[str, ...]) -> str | None:
    return parse(AnswerFormat.LETTER, f"<answer>{content}</answer>", options).answer


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(
    ("content", "value", "unit"),
    [
        ("25759", 25759.0, ""), ("25,759", 25759.0, ""), ("1,234,567.5", 1234567.5, ""), ("-3", -3.0, ""),
        ("−3", -3.0, ""), (".5", 0.5, ""), ("5.", 5.0, ""), ("2.5e4", 25000.0, ""), ("10^-2", 0.01, ""),
        ("10⁻²", 0.01, ""), ("-1.5 × 10^3", -1500.0, ""), ("2x10**3 bp", 2000.0, "bp"),
        ("25759 bp", 25759.0, "bp"), ("25759bp", 25759.0, "bp"), ("3 m2", 3.0, "m2"), ("3 s-1", 3.0, "s-1"),
        ("20 °C", 20.0, "°C"), ("12 base pairs", 12.0, "basepairs"), ("50%", 50.0, "%"),
    ],
)  # fmt: skip
def test_numbers_may_have_separators_sign_power_and_unit(content: str, value: float, unit: str) -> None:
    stated = read(AnswerFormat.NUMBER, content)
    assert stated.answer is not None
    assert (float(stated.answer), stated.unit) == (value, unit)


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_python_writes_is_read_as_itself(value: float) -> None:
    assert read(AnswerFormat.NUMBER, repr(value)).answer == repr(value)
    assert read(AnswerFormat.NUMBER, repr(value).replace("-", "−")).answer == repr(value)


@pytest.mark.spec("DATA-04")
@settings(max_examples=150, deadline=None)
@given(st.integers(-(10**30), 10**30), st.integers(-20, 20))
def test_a_number_is_read_exactly_in_every_spelling(digits: int, power: int) -> None:
    exact = Decimal(f"{digits}e{power}")
    spelt = [f"{digits}e{power}", f"{digits:,}E{power:+d}", f"{digits} × 10^{power}", f"{digits}x10**{power}"]
    for content in spelt:
        stated = read(AnswerFormat.NUMBER, content)
        assert stated.answer is not None
        assert Decimal(stated.answer) == exact


def test_units_are_equal_without_case_but_mega_is_not_milli() -> None:
    assert fold_unit("BP") == fold_unit(" b p") != fold_unit("kb")
    assert fold_unit("mM") != fold_unit("mm") != fold_unit("Mm")
    assert fold_unit("m²") == fold_unit("m2")
    assert fold_unit("µl") == fold_unit("μL")


@pytest.mark.spec("DATA-04")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.text("abcXYZ0123-", min_size=1, max_size=6).filter(lambda item: item[0] not in "-"), min_size=1
    ),
    st.randoms(),
)
def test_a_set_does_not_depend_on_order_case_repeats_and_separators(items: list[str], random: object) -> None:
    assert hasattr(random, "shuffle")
    other = [item.lower() for item in items] + items[:1]
    random.shuffle(other)  # type: ignore[attr-defined]
    plain = read(AnswerFormat.SET, ", ".join(items))
    assert plain.answer == ", ".join(sorted({item.upper() for item in items}))
    for separator in (",", " ; ", "\n", "，", ",\n"):
        assert read(AnswerFormat.SET, separator.join(other)).answer == plain.answer


@pytest.mark.spec("DATA-04")
@settings(max_examples=150, deadline=None)
@given(st.text(max_size=20))
def test_an_rsid_is_read_as_it_was_written_or_not_at_all(content: str) -> None:
    for text in (content, "rs" + content):
        answer = read(AnswerFormat.RSID, text).answer
        assert answer is None or (answer in text and answer[2:].isascii() and answer[2:].isdigit())


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_normalising_text_twice_changes_nothing_more(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_every_character_normalises_to_something_stable() -> None:
    assert [code for code in range(0x110000) if normalise(normalise(chr(code))) != normalise(chr(code))] == []


@pytest.mark.parametrize(
    "text",
    [
        "<" * 4_000_000, "<answer " * 500_000, "<Answer" + " " * 4_000_000, "<answer>" * 500_000,
        f"<answer>{'9' * 4_000_000}</answer>", f"<answer>{',' * 4_000_000}</answer>",
        f"<answer>{'a <' * 1_000_000}</answer>", f"<answer>{'9,999' * 700_000}</answer>",
        f"<answer>{' ' * 4_000_000}</answer>", f"<answer>*{'a' * 4_000_000}</answer>",
    ],
    ids=str.__len__,
)  # fmt: skip
def test_the_longest_text_that_a_program_may_submit_takes_no_long_time(text: str) -> None:
    for form in AnswerFormat:
        started = time.process_time()
        parse(form, text, OPTIONS)
        # A reading that grows with the square of the length would take minutes.
        assert time.process_time() - started < 10


def test_the_diagnosis_shows_every_pair_and_no_character_that_a_terminal_would_obey() -> None:
    two = parse(AnswerFormat.LETTER, "I write <answer>value</answer>.\n<answer>B</answer>", OPTIONS)
    assert (two.reason, two.shown) == ("tags = 2", '"value", "B"')
    assert read(AnswerFormat.LETTER, "\u200bB\x1b[2J").shown == '"\\u200bB\\x1b[2J"'
    many = parse(AnswerFormat.LETTER, "<answer>x</answer>" * 9, OPTIONS)
    assert many.shown == '"x", "x", "x", "x", "x" and more'
    assert len(read(AnswerFormat.TEXT, "long " * 1000).shown) < 100
    assert parse(AnswerFormat.LETTER, "<Answer>B</Answer>", OPTIONS).shown == '"<Answer>", "</Answer>"'


def test_every_format_tells_its_form_with_one_pair_of_tags() -> None:
    forms = {answer_form(form) for form in AnswerFormat}
    assert len(forms) == len(AnswerFormat)
    assert answer_form(AnswerFormat.LETTER) == "<answer>letter</answer>"
    for form in forms:
        assert form.count("<answer>") == form.count("</answer>") == 1
        assert "\n" not in form
