"""Rubrics through a frozen release and the grader's own process: needs, measured answers, one verdict."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from verifier.draft import Draft
from verifier.errors import GraderLost
from verifier.freeze import Declared, freeze, freeze_draft
from verifier.grade import Grader
from verifier.importers.base import Problem
from verifier.importers.jsonl import JsonLines
from verifier.outside import JudgeQuestion, Measured, Needs
from verifier.release import Release, ReleaseError
from verifier.script import Script, ScriptStep
from verifier.task import AnswerFormat, Task, Verdict

SCRIPT = {
    "steps": [{"tests": ["tests"], "seconds": 5, "environment": {"KEY": "value"}}],
    "files": {},
}


def criterion(name: str, check: dict[str, Any], weight: float = 1) -> dict[str, Any]:
    return {"name": name, "description": f"hidden words of {name}", "weight": weight, "check": check}


def released(
    root: Path,
    reference: dict[str, Any],
    form: AnswerFormat = AnswerFormat.TEXT,
    checked_by: tuple[Any, ...] = (),
) -> Release:
    task = Task(
        id="t",
        split="test",
        family="f",
        subtopic="s",
        material_group="g",
        prompt="Explain it.",
        answer_format=form,
        checked_by=checked_by,
    )
    return freeze(
        root,
        name="one",
        licence="CC0-1.0",
        sources=["made up"],
        families={"f": ["s"]},
        tasks=[task],
        references={"t": reference},
    )


MIXED = {
    "answer": "tp53",
    "rubric": {
        "criteria": [
            criterion("right", {"kind": "answer"}, 2),
            criterion("names a role", {"kind": "contains", "texts": ["suppressor"], "within": "text"}),
            criterion("clear", {"kind": "judge"}),
        ],
        "pass_mark": 0.75,
    },
}
SUBMISSION = "A tumour suppressor: <answer>TP53</answer>"


@pytest.mark.spec("RL-04")
async def test_answer_declared_checks_and_a_judge_make_one_r(tmp_path: Path):
    with Grader(released(tmp_path / "r", MIXED, checked_by=("judge",))) as grader:
        wanted = await grader.needs_aside("t", SUBMISSION)
        assert wanted == Needs(judge=(JudgeQuestion("clear", "hidden words of clear"),))
        verdict = await grader.grade_aside("t", SUBMISSION, Measured(judged={"clear": 0.5}))
        assert verdict.criteria == {"right": 1.0, "names a role": 1.0, "clear": 0.5}
        assert verdict.score == verdict.reward == 3.5 / 4
        assert (verdict.format_valid, verdict.correct) == (True, True)
        wrong = await grader.grade_aside("t", "<answer>BRCA1</answer>", Measured(judged={"clear": 1.0}))
        assert (wrong.correct, wrong.reward) == (False, 0.25)


async def test_an_invalid_format_scores_0_and_is_shown_to_no_judge(tmp_path: Path):
    with Grader(released(tmp_path / "r", MIXED, checked_by=("judge",))) as grader:
        assert await grader.needs_aside("t", "TP53, a suppressor") is None
        verdict = await grader.grade_aside("t", "TP53, a suppressor")
        assert (verdict.format_valid, verdict.correct, verdict.score) == (False, False, 0.0)


@pytest.mark.parametrize("judged", [{}, {"clear": math.nan}, {"clear": 1.5}, {"other": 1.0}])
async def test_what_was_not_measured_as_a_share_is_a_lost_grader_and_never_a_score(
    tmp_path: Path, judged: dict[str, float]
):
    with Grader(released(tmp_path / "r", MIXED, checked_by=("judge",))) as grader:
        with pytest.raises(GraderLost) as caught:
            await grader.grade_aside("t", SUBMISSION, Measured(judged=judged))
        assert "hidden words" not in str(caught.value)
        # The process is none the worse for it.
        assert (await grader.grade_aside("t", SUBMISSION, Measured(judged={"clear": 1.0}))).reward == 1.0


async def test_a_script_task_takes_any_text_and_its_script_decides(tmp_path: Path):
    reference = {
        "rubric": {"criteria": [criterion("script", {"kind": "script"})]},
        "script": SCRIPT,
    }
    release = released(tmp_path / "r", reference, AnswerFormat.FILES, ("script",))
    with Grader(release) as grader:
        step = ScriptStep(("tests",), 5.0, {"KEY": "value"})
        assert await grader.needs_aside("t", "") == Needs(script=Script((step,), SCRIPT["files"]))
        good = await grader.grade_aside("t", "done", Measured(rewards={"a": 1.0, "b": 1.0}))
        assert (good.correct, good.reward, good.format_valid) == (True, 1.0, True)
        half = await grader.grade_aside("t", "done", Measured(rewards={"a": 1.0, "b": 0.0}))
        assert (half.correct, half.reward) == (False, 0.5)
        for rewards in ({"a": 2.0}, {"a": -1.0}, None):
            with pytest.raises(GraderLost):
                await grader.grade_aside("t", "done", Measured(rewards=rewards))
        too_much = await grader.grade_aside("t", "done", Measured(refused="it holds too much"))
        assert (too_much.format_valid, too_much.reward, too_much.reason) == (False, 0.0, "it holds too much")


@pytest.mark.spec("RL-04")
def test_weights_belong_to_the_verifiers_identity(tmp_path: Path):
    heavier = {**MIXED, "rubric": {**MIXED["rubric"], "criteria": [*MIXED["rubric"]["criteria"][:2]]}}  # type: ignore[index]
    heavier["rubric"]["criteria"] = [*heavier["rubric"]["criteria"], criterion("clear", {"kind": "judge"}, 3)]
    one = released(tmp_path / "one", MIXED, checked_by=("judge",))
    other = released(tmp_path / "other", heavier, checked_by=("judge",))
    assert one.verifier_identity() != other.verifier_identity()
    assert one.tasks == other.tasks


# fmt: off
FROZEN_OUT: list[tuple[dict[str, Any], AnswerFormat, tuple[str, ...], str]] = [
    (
        {"rubric": {"criteria": [criterion("a", {"kind": "judge"}, 0)]}},
        AnswerFormat.TEXT, ("judge",), "all weights",
    ),
    ({"rubric": {"criteria": [criterion("a", {"kind": "judge"})]}}, AnswerFormat.TEXT, (), "checked_by"),
    ({"answer": "x"}, AnswerFormat.TEXT, ("judge",), "checked_by"),
    ({"rubric": {"criteria": [criterion("a", {"kind": "answer"})]}}, AnswerFormat.TEXT, (), "no answer"),
    (
        {"rubric": {"criteria": [criterion("a", {"kind": "script"})]}},
        AnswerFormat.TEXT, ("script",), "without script",
    ),
    ({"answer": "done"}, AnswerFormat.FILES, (), "script criterion"),
    (
        {"rubric": {"criteria": [criterion("a", {"kind": "judge"})]}},
        AnswerFormat.FILES,
        ("judge",),
        "script criterion",
    ),
]
# fmt: on


@pytest.mark.parametrize(("reference", "form", "checked_by", "words"), FROZEN_OUT)
def test_a_rubric_that_no_run_could_measure_does_not_freeze(
    tmp_path: Path, reference: dict[str, Any], form: AnswerFormat, checked_by: tuple[str, ...], words: str
):
    with pytest.raises(ReleaseError, match=words) as caught:
        released(tmp_path / "r", reference, form, checked_by)
    assert "hidden words" not in str(caught.value)
    assert not (tmp_path / "r").exists()


def test_a_plain_verdict_is_written_with_the_bytes_that_it_always_had():
    verdict = Verdict(format_valid=True, correct=True, answer="A", reason="right")
    assert verdict.model_dump_json() == '{"format_valid":true,"correct":true,"answer":"A","reason":"right"}'
    zero = Verdict(format_valid=False, correct=False, answer=None, reason="no", score=0.0)
    assert Verdict.model_validate_json(zero.model_dump_json()).score == 0.0


def written(root: Path, *entries: dict[str, Any]) -> JsonLines:
    root.mkdir(exist_ok=True)
    lines = [json.dumps({"id": f"q{n}", "question": "Why?", **entry}) for n, entry in enumerate(entries)]
    (root / "tasks.jsonl").write_text("\n".join(lines))
    return JsonLines(root / "tasks.jsonl", licence="CC0-1.0")


async def test_a_rubric_in_a_file_of_ones_own_is_private_and_decides(tmp_path: Path):
    draft = Draft.create(tmp_path / "draft")
    draft.add(written(tmp_path / "source", {"rubric": MIXED["rubric"], "answer": "tp53", "split": "test"}))
    freeze_draft(draft, tmp_path / "release", Declared(name="own"))
    release = Release.load(tmp_path / "release")
    assert release.tasks[0].checked_by == ("judge",)
    assert "hidden words" not in (release.root / "public/tasks.jsonl").read_text()
    with Grader(release) as grader:
        verdict = await grader.grade_aside("q0", SUBMISSION, Measured(judged={"clear": 1.0}))
    assert verdict.reward == 1.0


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"rubric": {"criteria": [criterion("a", {"kind": "judge"}, 0)]}}, "all weights"),
        ({"rubric": {"criteria": [criterion("a", {"kind": "script"})]}}, "Harbor"),
        ({"answer": "x", "format": "files"}, "Harbor"),
        ({}, "answer"),
    ],
)
def test_a_row_whose_rubric_cannot_be_measured_is_named_and_shows_none_of_it(
    tmp_path: Path, entry: dict[str, Any], words: str
):
    (row,) = written(tmp_path / "source", entry).rows()
    assert isinstance(row, Problem)
    assert row.where == "tasks.jsonl line 1"
    assert words in row.why
    assert "hidden words" not in row.why
