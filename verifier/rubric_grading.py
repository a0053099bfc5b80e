"""A submission under a rubric: what has to be measured outside, then R and the verdict.

Runs in the grader's process. `needs` says what judge and script must answer, the broker gets it, and
`grade_by_rubric` turns everything into one verdict. A submission whose format is invalid scores 0 and is
shown to nobody.
"""

from collections.abc import Sequence
from typing import Any, Final

from verifier.answer_format import AnswerFormat
from verifier.answers import parse
from verifier.answers.tags import read_tags
from verifier.comparison import grade_text
from verifier.errors import GraderLost
from verifier.outside import JudgeQuestion, Measured, Needs
from verifier.references import Reference
from verifier.rubric import Criterion, Rubric, reward
from verifier.rubric_checks import AnswerCheck, JudgeCheck, ScriptCheck, measure
from verifier.script import satisfaction

_EXACT: Final = 1e-9
"""Below a pass mark by no more than this, R reaches it: shares like a third have no exact float."""


def needs(format: AnswerFormat, options: Sequence[str], reference: Reference, text: str) -> Needs | None:
    """What the submission needs from outside; None when the grader can judge alone."""
    rubric = reference.rubric
    if rubric is None or parse(format, text, options).answer is None:
        return None
    judge = tuple(
        JudgeQuestion(item.name, item.description)
        for item in rubric.criteria
        if isinstance(item.check, JudgeCheck)
    )
    return Needs(judge, reference.script) if judge or reference.script is not None else None


def grade_by_rubric(
    format: AnswerFormat,
    options: Sequence[str],
    reference: Reference,
    rubric: Rubric,
    text: str,
    measured: Measured,
) -> dict[str, Any]:
    """The fields of a verdict. Raises GraderLost when something was not measured, or measured as no share."""
    stated = parse(format, text, options)
    if stated.answer is None:
        return _failed(stated.reason, stated.shown)
    if measured.refused:
        return _failed(measured.refused[:200], "")
    content = text if format is AnswerFormat.FILES else read_tags(text).content or ""
    satisfied = {
        item.name: _satisfaction(item, (format, options, reference, text), content, measured)
        for item in rubric.criteria
    }
    score = reward(rubric, satisfied)
    full = sum(satisfied[item.name] == 1.0 for item in rubric.criteria)
    return {
        "format_valid": True,
        "correct": score >= rubric.pass_mark - _EXACT,
        "answer": stated.answer[:200],
        "reason": f"{full} of {len(satisfied)} criteria fully satisfied",
        "diagnosis": stated.shown,
        "score": score,
        "criteria": satisfied,
    }


def _failed(reason: str, shown: str) -> dict[str, Any]:
    return {
        "format_valid": False,
        "correct": False,
        "answer": None,
        "reason": reason,
        "diagnosis": shown,
        "score": 0.0,
    }


def _satisfaction(
    item: Criterion,
    submission: tuple[AnswerFormat, Sequence[str], Reference, str],
    content: str,
    measured: Measured,
) -> float:
    match item.check:
        case AnswerCheck():
            return 1.0 if grade_text(*submission).correct else 0.0
        case ScriptCheck(key):
            if measured.rewards is None:
                raise GraderLost(f"criterion {item.name!r} needs a script, and none was run")
            return satisfaction(measured.rewards, key)
        case JudgeCheck():
            if item.name not in measured.judged:
                raise GraderLost(f"criterion {item.name!r} needs a judge, and none was asked")
            return measured.judged[item.name]
        case check:
            return measure(check, content, submission[3])
