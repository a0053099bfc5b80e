"""The page of a step: the decision, what it may be worth, and a card for each candidate."""

import re
from dataclasses import replace
from typing import Any

import pytest
from synthetic_run import HOSTILE, outcomes, program, rows

from report.assemble import assemble
from report.data import RunView
from report.html import render, render_step, write_steps
from report.step_view import StepRows

ATTEMPT: dict[str, Any] = {
    "task_id": "train-1",
    "executed": True,
    "finished": True,
    "format_valid": True,
    "stop_reason": "first_answer",
    "error": None,
    "model_calls": 2,
    "tool_calls": 1,
}


def measured(right: int, seed: int, ids: str) -> dict[str, Any]:
    found = outcomes(right, 60, 60, seed)
    names = {item["task_id"]: f"{ids}{number:010d}" for number, item in enumerate(found)}
    spent = {"model_calls": 180, "tool_calls": 120, "prompt_tokens": 123456, "completion_tokens": 789}
    return {"outcomes": found, "episode_ids": names, "spent": spent}


def step_rows(**changes: Any) -> StepRows:
    decision = {
        **rows().decisions[0]["decision"],
        "null": {"noise": 0.3, "probability": 0.81, "mean_gain": 0.04, "as_large": 3e-4, "candidates": 2},
        "again": {
            "both": 1,
            "fixed": 3,
            "broken": 2,
            "neither": 54,
            "p_value": 1.0,
            "interval": [-0.05, 0.08],
        },
        "skipped": ["no proposal: nothing more to say"],
    }
    proposal = {"command": "propose", "harness": {"code": program(1)}, "evidence_ids": ["e1:0", "e4:1"]}
    gate = {
        "passed": True,
        "reason": "executes and finishes",
        "notices": ["id in documentation, not sent: 'x'"],
        "attempts": [ATTEMPT, {**ATTEMPT, "finished": False, "stop_reason": "model_call_budget"}],
        "new_text": [f"Query the lake first {HOSTILE}"],
        "gone_text": [],
    }
    fields: dict[str, Any] = {
        "cycle": 1,
        "step": 1,
        "decision": decision,
        "proposals": [{**proposal, "protocol": {"reads": 2, "repairs": 1}}, {"command": "skip"}],
        "gates": [gate, {"passed": False, "reason": "no proposal", "notices": []}],
        "bundle": {
            "interactions": [{"task": "train-1"}, {"task": "train-2"}, {"task": "train-2"}],
            "items": [
                {"id": "e1:0", "task_id": "train-1", "kind": "tool_error", "quote": f"KeyError {HOSTILE}"},
                {"id": "e4:1", "task_id": "train-2", "kind": "correction", "quote": "Reconsider."},
            ],
        },
        "history": 2,
        "exchanges": [
            {"totals": {"improver": asked(5, 900)}},
            {"totals": {"improver": asked(1, 100), "simulator": asked(16, 10)}},
        ],
        "parent": measured(2, 1, "aa"),
        "candidates": {0: measured(20, 1, "bb")},
        "parent_code": program(0),
        "codes": {0: program(1)},
        **changes,
    }
    return StepRows(**fields)


def asked(count: int, tokens: int) -> dict[str, Any]:
    plain = {"exchanges": count, "failed": 1, "completion_tokens": tokens, "cost": 0.5, "seconds": 1.0}
    return {**plain, "prompt_tokens": tokens * 10}


def a_view(step: StepRows | None = None) -> RunView:
    step = step or step_rows()
    base = rows()
    decisions = [{**base.decisions[0], "decision": step.decision}, *base.decisions[1:]]
    return assemble(replace(base, decisions=decisions, steps=[step]))


def page(view: RunView | None = None) -> str:
    view = view or a_view()
    step = view.step(view.decisions[0])
    assert step is not None
    return render_step(view, view.decisions[0], step)


@pytest.mark.spec("SEL-09")
def test_the_page_holds_rule_statistics_null_and_noise_floor() -> None:
    text = " ".join(re.sub(r"<[^>]+>", "", page()).split())
    for part in (
        "candidate 0 adopted",
        "11 fixed, 2 broken: exact McNemar p = 0.022",
        "gain +5 to +25 points (95 %, whole material groups redrawn)",
        "adopt one all the same with probability 0.81, for an apparent gain of 4.0 points on average",
        "for a gain as large as this one with a probability of 0.0003",
        "5 of 60 answers changed (3 to right, 2 to wrong)",
        "draws 30 % of each candidate's answers anew",
    ):
        assert part in text, part


def test_a_gain_no_larger_than_the_flips_of_the_parent_is_said_to_be_noise() -> None:
    assert "cannot be told from noise" not in page()
    again = {"both": 0, "fixed": 10, "broken": 10, "neither": 40, "p_value": 1.0, "interval": [-0.1, 0.1]}
    noisy = step_rows(decision={**step_rows().decision, "again": again})
    assert "cannot be told from noise" in page(a_view(noisy))


@pytest.mark.spec("SEL-09")
def test_the_card_holds_evidence_scan_dry_run_preflight_changes_and_cost() -> None:
    text = page()
    for part in (
        "tool error",
        "Reconsider.",
        "checks and leak scan: 1 notice",
        "not sent: ",
        "Query the lake first",
        "model call budget",
        "reads: 2",
        "1 hunk in text",
        "123 456",
        "3 Train conversations on 2 tasks",
        "aggregates of 2 earlier steps",
        "no proposal: nothing more to say",
    ):
        assert part in text, part
    improver = re.search(r"<td>improver</td>(.*?)</tr>", text)
    assert improver is not None
    assert re.findall(r">([^<>]+)</td>", improver[0]) == ["improver", "6", "2", "10 000", "1 000", "1.0000"]


def test_every_changed_task_names_both_episodes_for_replay() -> None:
    view = a_view()
    step = view.step(view.decisions[0])
    assert step is not None
    changed = step.cards[0].changed
    assert sum(item.fixed for item in changed) == 18
    assert all(item.parent_episode.startswith("aa") for item in changed)
    assert all(item.candidate_episode.startswith("bb") for item in changed)
    text = page(view)
    assert "rinr replay ID" in text
    assert all(item.candidate_episode in text for item in changed)


def test_what_a_program_or_a_model_says_is_shown_as_text() -> None:
    text = page()
    assert HOSTILE not in text
    assert text.count("&lt;script&gt;") >= 3
    assert not re.search(r"https?:|//[a-z]|@import|src\s*=|url\((?!#)", text)


def test_a_step_of_which_little_was_recorded_still_has_a_page() -> None:
    bare = StepRows(cycle=1, step=1, decision={"parent": "", "adopted": False, "reason": "nothing"})
    assert "parent kept" in page(a_view(bare))
    lost = step_rows(bundle=None, gates=[], exchanges=[], parent=None, candidates=None, codes=None)
    assert "Candidate 0" in page(a_view(lost))


def test_the_report_links_to_the_pages_that_are_written(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("report.html.figures", lambda _view: [])
    view = a_view()
    written = write_steps(view, tmp_path / "steps")
    assert [path.name for path in written] == ["h0001-1.html"]
    assert re.findall(r'href="(steps/[^"]+)"', render(view)) == ["steps/h0001-1.html"]


@pytest.mark.spec("SEL-09")
def test_the_null_over_the_run_adds_up_expectations_and_multiplies_what_did_not_happen() -> None:
    view = a_view()
    first = view.decisions[0]
    assert first.null is not None
    twice = replace(view, decisions=(first, replace(first, step=2, adopted=None, candidates=())))
    found = twice.spurious()
    assert found is not None
    assert (found.steps, found.adopted) == (2, 1)
    assert found.expected == pytest.approx(1.62)
    assert found.any == pytest.approx(1 - 0.19**2)
    assert twice.spurious(first) == view.spurious()


@pytest.mark.spec("SCHED-06")
def test_under_trigger_improvement_the_report_says_that_test_is_no_holdout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("report.html.figures", lambda _view: [])
    base = rows()
    config = {**base.run["config"], "schedule": {"trigger": "improvement"}}
    steered = replace(base, run={**base.run, "config": config})
    assert "needs a holdout" in render(assemble(steered))
    assert "needs a holdout" not in render(assemble(base))


def adapted() -> RunView:
    """Three batches, the second program the best, and Val at the end."""
    digests = [f"sha256:{letter * 64}" for letter in "abc"]
    plain = {"run_id": "ad", "cycle": 1, "model": "sha256:" + "0" * 64, "stage_key": "x"}
    made = [
        {**plain, "kind": "adaptation_batch", "split": "train", "harness": harness, "detail": {"step": step}}
        | {"correct": correct, "valid": 12, "total": 12}
        for step, (harness, correct) in enumerate(zip(digests, (3, 9, 6), strict=True), start=1)
    ]
    for kind, harness, correct in (
        ("validation_initial", digests[0], 28),
        ("validation_selected", digests[1], 46),
    ):
        detail = {"step": 0, "outcomes": outcomes(correct, 60, 60, 1)}
        made.append(
            {**plain, "kind": kind, "split": "val", "harness": harness, "detail": detail}
            | {"correct": correct, "valid": 60, "total": 60}
        )
    return assemble(replace(rows(), measurements=made, decisions=[], updates=[]))


@pytest.mark.spec("SCHED-10", "REP-02")
def test_an_adaptation_shows_its_learning_curve_and_compares_the_selected_program_with_h0() -> None:
    text = render(adapted())
    assert "Batch accuracy" in text
    assert "changing samples" in text
    assert "Val, which chose nothing here" in text
    assert text.index("46.7 %") < text.index("76.7 %"), "the headline: H0, then the selected program"
    assert [item.label for item in adapted().batches] == ["batch 1", "batch 2", "batch 3"]
    assert adapted().selections == ()
