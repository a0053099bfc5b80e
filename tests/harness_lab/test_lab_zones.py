"""Train strings are refused where they run or are sent, and noticed in documentation; held-out ones alarm."""

import pytest

from harness_lab.zones import scan

PROGRAM = '''"""From failures on dbqa-aaaa and gwas-bbbb."""
RULES = "Look at the table."  # gwas-bbbb again

def run(task, api):
    api.submit(api.generate([{"role": "user", "content": RULES + task["prompt"]}]))
'''


@pytest.mark.spec("EVID-06")
def test_case_t03_ids_in_documentation_are_a_notice_and_in_sent_text_a_leak() -> None:
    found = scan(PROGRAM, ids=["dbqa-aaaa", "gwas-bbbb", "dbqa-aaa"])
    assert [(f.text, f.zone, f.severity) for f in found] == [
        ("dbqa-aaaa", "documentation", "notice"),
        ("gwas-bbbb", "documentation", "notice"),
    ]
    assert "in documentation, not sent" in found[0].words()
    leaking = scan(PROGRAM.replace("Look at", "As in dbqa-aaaa, look at"), ids=["dbqa-aaaa"])
    assert [(f.zone, f.severity) for f in leaking] == [("code", "refused")]


@pytest.mark.spec("EVID-06")
def test_an_accepted_answer_counts_without_its_tags_and_short_ones_say_nothing() -> None:
    code = PROGRAM.replace("Look at the table.", "TP53X is the usual answer, or B.")
    found = scan(code, answers=["<answer>TP53X</answer>", "<answer>B</answer>"])
    assert [(f.kind, f.text, f.severity) for f in found] == [("answer", "TP53X", "refused")]
    assert scan(code, answers=["<answer>TP53X</answer>"], known=code) == ()


@pytest.mark.spec("EVID-06")
def test_a_held_out_string_alarms_even_in_a_comment() -> None:
    found = scan(PROGRAM, held_out=["gwas-bbbb", "Look at\n  the table."])
    assert {f.severity for f in found} == {"alarm"}
    assert len(found) == 2
