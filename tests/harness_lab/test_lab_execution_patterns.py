"""Counts of how Train interactions went, by family, from evidence alone."""

import pytest
from lab_samples import a_task, interaction, tool_call

from broker.record import StopReason
from harness_lab.evidence import Interaction
from harness_lab.execution_patterns import Patterns, error_class, execution_patterns
from harness_lab.replies import ReplyCase


def of_family(family: str, item: Interaction) -> Interaction:
    return item.model_copy(update={"task": a_task(item.task.id, family=family)})


@pytest.mark.spec("PROP-03")
def test_forms_errors_calls_and_budgets_are_counted_by_family() -> None:
    failed = (tool_call(error="Traceback ...\nKeyError: 'gene'"), tool_call(1, error="no class here at all"))
    seen = [
        of_family("gwas", interaction("t1", ReplyCase.INVALID_FORMAT, tools=failed)),
        of_family("gwas", interaction("t2", submissions=(), stop=StopReason.MODEL_CALL_BUDGET)),
        of_family("dbqa", interaction("t3", ReplyCase.ACCEPTED)),
        of_family("dbqa", interaction("t4", crash="File x\nZeroDivisionError: division by zero")),
    ]
    found = execution_patterns(seen)
    assert list(found) == ["all", "dbqa", "gwas"]
    gwas = found["gwas"]
    assert gwas.first_answer == {"valid": 0, "invalid": 1, "none": 1}
    assert gwas.tool_errors == {"KeyError": 1, "other": 1}
    assert gwas.budgets_hit == {"model_call_budget": 1}
    assert (gwas.tool_calls.mean, gwas.tool_calls.most, gwas.accepted) == (1.0, 2, 0)
    assert found["dbqa"].crashes == {"ZeroDivisionError": 1}
    assert found["dbqa"].accepted == 1
    assert found["dbqa"].budgets_hit == {}
    assert found["all"].episodes == 4
    assert found["all"].stop_reasons["candidate_error"] == 1


@pytest.mark.spec("PROP-03", "EVID-02")
def test_nothing_of_a_verdict_can_be_in_them() -> None:
    words = {"correct", "verdict", "reference", "reward", "score", "right"}
    assert not words & set(Patterns.model_fields)
    doubted = execution_patterns([interaction("t1", ReplyCase.RECONSIDER)])["all"]
    assert doubted.first_answer["valid"] == 1


def test_no_interactions_give_zeros() -> None:
    assert execution_patterns([])["all"].model_calls.mean == 0.0


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("ValueError: x", "ValueError"),
        ("a.b.ParserError: y", "ParserError"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("", "other"),
        ("it went wrong", "other"),
        ("x" * 10_000, "other"),
    ],
)
def test_an_error_is_named_by_its_last_line(error: str, named: str) -> None:
    assert error_class(error) == named
