"""Grading against private references (DATA-04)."""

import atexit
import functools
import subprocess
import sys
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.releases import tiny_release
from tests.verifier.answer_table import DECISIONS, OPTIONS, PAGE, REFERENCES, Decision, page_with_table
from verifier.answers import GRADING_VERSION
from verifier.comparison import grade_text
from verifier.errors import GraderLost
from verifier.freeze import freeze
from verifier.grade import Grader
from verifier.references import Reference
from verifier.release import Release, ReleaseError
from verifier.task import AnswerFormat, Task

ROOT = Path(__file__).parents[2]


def one_task(
    root: Path, form: AnswerFormat, reference: dict[str, Any], options: tuple[str, ...] = ()
) -> Grader:
    """A grader of a release with the single task "t"."""
    task = Task(
        id="t", split="test", family="f", subtopic="s", material_group="g", prompt="?", options=options,
        answer_format=form,
    )  # fmt: skip
    release = freeze(
        root / "one",
        name="one",
        licence="CC0-1.0",
        sources=[],
        families={"f": ["s"]},
        tasks=[task],
        references={"t": reference},
    )
    return Grader(release)


CASES: list[tuple[AnswerFormat, dict[str, Any], str, bool, bool, str]] = [
    (AnswerFormat.RSID, {"answer": "rs12"}, "RS12", True, False, "an rsID is written in lower case"),
    (AnswerFormat.RSID, {"answer": "rs12"}, " rs12 ", True, True, "right"),
    (AnswerFormat.RSID, {"answer": "rs12"}, "rs123", True, False, "wrong"),
    (AnswerFormat.RSID, {"answer": "rs12"}, "12", False, False, "not an rsID"),
    (AnswerFormat.SYMBOL, {"answer": "TP53"}, "tp53", True, True, "right"),
    (AnswerFormat.SYMBOL, {"answer": "TP53"}, "TP53 (p53)", True, False, "extra text"),
    (AnswerFormat.SYMBOL, {"answer": "TP53"}, "TP5", True, False, "wrong"),
    (AnswerFormat.LETTER, {"answer": "B"}, "b", True, True, "right"),
    (AnswerFormat.LETTER, {"answer": "B"}, "the brown one", True, True, "right"),
    (AnswerFormat.LETTER, {"answer": "B"}, "A. the red one", True, False, "wrong"),
    (AnswerFormat.LETTER, {"answer": "B"}, "A. the brown one", False, False, "letter and text disagree"),
    (AnswerFormat.NUMBER, {"answer": "1000", "absolute": 2}, "1,002", True, True, "right"),
    (AnswerFormat.NUMBER, {"answer": "1000", "absolute": 2}, "1003", True, False, "outside the tolerance"),
    (AnswerFormat.NUMBER, {"answer": "1000", "relative": 0.01}, "991 ", True, True, "right"),
    (AnswerFormat.NUMBER, {"answer": "1000", "relative": 0.01}, "989", True, False, "outside the tolerance"),
    (AnswerFormat.NUMBER, {"answer": "1000"}, "1000.0", True, True, "right"),
    (AnswerFormat.NUMBER, {"answer": "1000", "unit": "bp"}, "1000 BP", True, True, "right"),
    (AnswerFormat.NUMBER, {"answer": "1000", "unit": "bp"}, "1000 kb", True, False, "extra text"),
    (AnswerFormat.NUMBER, {"answer": "1000"}, "1000 bp", True, False, "extra text"),
    (AnswerFormat.TEXT, {"answer": "New  York"}, "new\nyork", True, True, "right"),
    (AnswerFormat.TEXT, {"answer": "New York"}, "York", True, False, "wrong"),
]


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize(("form", "reference", "said", "valid", "correct", "reason"), CASES)
def test_an_answer_is_judged_by_the_rules_of_its_format(
    tmp_path: Path,
    form: AnswerFormat,
    reference: dict[str, Any],
    said: str,
    valid: bool,
    correct: bool,
    reason: str,
) -> None:
    options = ("the red one", "the brown one") if form is AnswerFormat.LETTER else ()
    verdict = one_task(tmp_path, form, reference, options).grade("t", f"I think <answer>{said}</answer>.")
    assert (verdict.format_valid, verdict.correct, verdict.reason) == (valid, correct, reason)
    assert verdict.reward == float(correct)


@pytest.mark.spec("DATA-04")
@pytest.mark.parametrize("row", DECISIONS, ids=lambda row: f"{row.form}-{ascii(row.text)[:60]}")
def test_t08_t10_every_decision_on_a_malformed_answer_holds(row: Decision) -> None:
    verdict = decided(row.form).grade("t", row.text)
    outcome = ("right" if verdict.correct else "wrong") if verdict.format_valid else "invalid"
    assert (outcome, verdict.reason) == (row.outcome, row.reason)
    # These judgements are what GRADING_VERSION 2 means: change one, and the version must change as well.
    assert GRADING_VERSION == 2


@functools.cache
def decided(form: AnswerFormat) -> Grader:
    """A grader of the table's reference for that format; one for all rows."""
    folder = tempfile.TemporaryDirectory(prefix="rinr-decisions-")
    atexit.register(folder.cleanup)
    return one_task(Path(folder.name), form, REFERENCES[form], OPTIONS if form == "letter" else ())


def test_the_page_on_grading_shows_the_decisions_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page, "run python -m tests.verifier.answer_table"
    assert {row.form for row in DECISIONS} == set(AnswerFormat) - {AnswerFormat.FILES}


@pytest.mark.spec("DATA-04")
def test_t08_two_answers_are_invalid_even_when_one_is_right(tmp_path: Path) -> None:
    grader = one_task(tmp_path, AnswerFormat.LETTER, {"answer": "B"}, ("red", "brown"))
    verdict = grader.grade("t", "Form: <answer>value</answer>. So <answer>B</answer>")
    assert (verdict.format_valid, verdict.correct, verdict.reward) == (False, False, 0.0)
    assert (verdict.reason, verdict.diagnosis) == ("tags = 2", '"value", "B"')


@pytest.mark.spec("DATA-04")
def test_a_wrong_answer_and_an_invalid_format_are_told_apart(tmp_path: Path) -> None:
    grader = one_task(tmp_path, AnswerFormat.LETTER, {"answer": "B"}, ("red", "brown"))
    wrong, invalid = grader.grade("t", "<answer>A</answer>"), grader.grade("t", "<answer>A or B</answer>")
    assert (wrong.format_valid, wrong.correct, wrong.answer) == (True, False, "A")
    assert (invalid.format_valid, invalid.correct, invalid.answer) == (False, False, None)


@pytest.mark.spec("DATA-04")
@settings(max_examples=200, deadline=None)
@given(
    st.decimals(-1000, 1000, places=3),
    st.decimals(0, 10, places=3),
    st.sampled_from(["absolute", "relative"]),
    st.integers(-3, 3),
)
def test_the_tolerance_is_exact_in_decimal(right: Decimal, allowed: Decimal, kind: str, steps: int) -> None:
    """Its edge belongs to it, however the numbers round in binary."""
    width = Fraction(allowed) * (1 if kind == "absolute" else abs(Fraction(right)))
    # Floats of three places, of six where they are multiplied: exact in decimal.
    said = Decimal(right) + (allowed if kind == "absolute" else allowed * abs(right))
    said += Decimal(steps) * Decimal("0.000001")
    tolerances = {kind: float(allowed)}
    reference = Reference(task="t", answer=str(right), **tolerances)
    outcome = grade_text(AnswerFormat.NUMBER, (), reference, f"<answer>{said}</answer>")
    assert outcome.correct == (abs(Fraction(said) - Fraction(right)) <= width)


@pytest.mark.spec("DATA-04")
def test_large_whole_numbers_do_not_become_equal_by_rounding() -> None:
    reference = Reference(task="t", answer="9007199254740993")
    for said, correct in (
        ("9007199254740993", True),
        ("9007199254740992", False),
        ("9.007199254740993e15", True),
    ):
        assert grade_text(AnswerFormat.NUMBER, (), reference, f"<answer>{said}</answer>").correct is correct


@functools.cache
def tiny_grader(root: Path) -> tuple[Release, Grader]:
    """One for all examples."""
    release = tiny_release(root)
    return release, Grader(release)


@pytest.mark.spec("DATA-04")
@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=60), st.booleans())
def test_no_text_makes_the_grader_raise(
    tmp_path_factory: pytest.TempPathFactory, text: str, tagged: bool
) -> None:
    release, grader = tiny_grader(tmp_path_factory.getbasetemp())
    for task in release.split("val"):
        verdict = grader.grade(task.id, f"<answer>{text}</answer>" if tagged else text)
        assert verdict.format_valid or not verdict.correct
        verdict.model_dump_json()


@pytest.mark.spec("DATA-02", "DATA-04")
def test_t10_a_subtask_misspelt_in_the_release_is_a_release_error(tmp_path: Path) -> None:
    """In some benchmarks the name picks how an answer is judged: a misspelt one must not pass for another."""
    task = Task(
        id="t", split="test", family="gwas", subtopic="gwas_variant_prioritisation", material_group="g",
        prompt="?", answer_format=AnswerFormat.RSID,
    )  # fmt: skip
    with pytest.raises(ReleaseError, match="gwas/gwas_variant_prioritisation is not declared") as caught:
        freeze(
            tmp_path / "one", name="one", licence="CC0-1.0", sources=[], tasks=[task],
            families={"gwas": ["gwas_variant_prioritization"]}, references={"t": {"answer": "rs12"}},
        )  # fmt: skip
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_very_long_answer_is_shortened_in_the_verdict(tmp_path: Path) -> None:
    grader = one_task(tmp_path, AnswerFormat.TEXT, {"answer": "short"})
    verdict = grader.grade("t", f"<answer>{'x' * 1_000_000}</answer>")
    assert verdict.answer is not None
    assert len(verdict.answer) == 200


@pytest.mark.spec("EVID-02")
def test_a_verdict_never_carries_the_reference(tmp_path: Path) -> None:
    grader = one_task(tmp_path, AnswerFormat.SYMBOL, {"answer": "SECRETGENE"})
    for text in ("", "<answer>x y</answer>", "<answer>wrong</answer>", "<answer></answer>"):
        verdict = grader.grade("t", text)
        assert "SECRET" not in verdict.model_dump_json().upper()
        assert "canary" not in verdict.model_dump_json()


def test_the_verifiers_identity_follows_the_references(tmp_path: Path) -> None:
    one = one_task(tmp_path / "a", AnswerFormat.SYMBOL, {"answer": "TP53"})
    same = one_task(tmp_path / "b", AnswerFormat.SYMBOL, {"answer": "TP53"})
    other = one_task(tmp_path / "c", AnswerFormat.SYMBOL, {"answer": "TP63"})
    assert one.identity == same.identity != other.identity
    assert one.identity == Release.load(tmp_path / "a" / "one").verifier_identity()


def test_the_verifiers_identity_follows_the_version_of_the_grading_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = one_task(tmp_path, AnswerFormat.SYMBOL, {"answer": "TP53"})
    monkeypatch.setattr("verifier.release.GRADING_VERSION", GRADING_VERSION + 1)
    later = Release.load(tmp_path / "one")
    assert later.verifier_identity() != one.identity
    assert later.digest == Release.load(tmp_path / "one").digest


def test_a_grading_process_of_another_version_grades_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the code was changed under a run: its identity would no longer be true."""
    grader = one_task(tmp_path, AnswerFormat.SYMBOL, {"answer": "TP53"})
    monkeypatch.setattr("verifier.grade.GRADING_VERSION", GRADING_VERSION + 1)
    with pytest.raises(
        GraderLost, match=f"of version {GRADING_VERSION}, this process of {GRADING_VERSION + 1}"
    ):
        grader.grade("t", "<answer>TP53</answer>")


@pytest.mark.spec("DATA-02")
@pytest.mark.parametrize(
    ("form", "reference", "complaint"),
    [
        (AnswerFormat.NUMBER, {"answer": "many"}, "not a number"),
        (AnswerFormat.NUMBER, {"answer": "5 bp"}, "its unit has a field of its own"),
        (AnswerFormat.RSID, {"answer": "12"}, "not an rsID"),
        (AnswerFormat.RSID, {"answer": "RS12"}, "an rsID is written in lower case"),
        (AnswerFormat.SYMBOL, {"answer": "**TP53**"}, "is not a symbol .markup."),
        (AnswerFormat.TEXT, {"answer": ""}, "answer: it is empty"),
        (AnswerFormat.TEXT, {"answer": 5}, "answer: a text belongs here"),
        (AnswerFormat.TEXT, {}, "answer: a reference has this field"),
        (AnswerFormat.LETTER, {"answer": "C"}, "no option C"),
        (AnswerFormat.LETTER, {"answer": "brown"}, "not one capital letter"),
        (AnswerFormat.TEXT, {"answer": "x", "absolute": -1}, "absolute: it must be finite and at least 0"),
        (AnswerFormat.TEXT, {"answer": "x", "tolerance": 1}, "tolerance: a reference has no such field"),
    ],
)
def test_a_reference_that_does_not_fit_its_task_cannot_be_frozen(
    tmp_path: Path, form: AnswerFormat, reference: dict[str, Any], complaint: str
) -> None:
    options = ("red", "brown") if form is AnswerFormat.LETTER else ()
    with pytest.raises(ReleaseError, match=complaint) as caught:
        one_task(tmp_path, form, reference, options)
    assert "private/references.jsonl line 1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("EVID-02")
def test_loading_a_release_imports_no_references() -> None:
    code = (
        "import sys, verifier.release, verifier.inventory, verifier.answers;"
        "verifier.release.find('open-genomics').inventory();"
        "assert 'verifier.references' not in sys.modules and 'verifier.grade' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
