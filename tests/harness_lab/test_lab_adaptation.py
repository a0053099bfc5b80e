"""The adaptation protocol: first answers count, and the best program on the batches is chosen (SCHED-10)."""

import pytest
from lab_samples import interaction

from harness_lab.adaptation import Batch, best_program, score_batch
from tests.fixtures.episodes import a_task, grader, right_answer


def batch(update: int, harness: str, correct: int, total: int = 12) -> Batch:
    return Batch(update=update, harness=harness, correct=correct, valid=total, total=total)


@pytest.mark.spec("SCHED-10")
def test_the_largest_share_over_all_batches_of_a_program_wins() -> None:
    batches = [batch(1, "h0", 6), batch(2, "h0", 2), batch(3, "h1", 5), batch(4, "h2", 4)]
    assert best_program(batches) == "h1", "6 of 12 was h0's lucky batch: 8 of 24 in all"


@pytest.mark.spec("SCHED-10")
def test_among_equals_more_conversations_win_and_then_the_earliest() -> None:
    assert best_program([batch(1, "h0", 6), batch(2, "h1", 6), batch(3, "h1", 6)]) == "h1"
    assert best_program([batch(1, "h0", 6), batch(2, "h1", 6)]) == "h0"


@pytest.mark.spec("SCHED-10", "FB-02")
def test_a_batch_counts_first_answers_and_no_later_ones() -> None:
    task = a_task()
    right, wrong = right_answer(task), "<answer>Xx</answer>"
    made = [
        interaction(task.id, submissions=texts).model_copy(update={"task": task})
        for texts in ((right,), (wrong, right), ("no tag",), ())
    ]
    found = score_batch(3, "sha256:" + "a" * 64, made, grader())
    assert (found.update, found.correct, found.valid, found.total) == (3, 1, 2, 4)


def test_a_batch_without_a_conversation_is_an_error() -> None:
    with pytest.raises(ValueError, match="no conversation"):
        score_batch(1, "h", [], grader())
    with pytest.raises(ValueError, match="no batch"):
        best_program([])
