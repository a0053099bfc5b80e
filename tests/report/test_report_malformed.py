"""Answers that could not be read are counted by reason and family, where people look and nowhere else."""

import re
from dataclasses import replace

import pytest
from synthetic_run import rows

from report.assemble import assemble
from report.html import render
from report.malformed import folded, malformed
from tests.verifier.answer_table import DECISIONS


def answer(reason: str, family: str = "GWAS", **changes: object) -> dict[str, object]:
    plain = {"family": family, "submitted": True, "format_valid": False, "answer_reason": reason}
    return {**plain, **changes}


@pytest.mark.spec("REP-05")
def test_reasons_are_counted_by_family_and_only_of_submitted_answers_without_a_form() -> None:
    found = malformed(
        [
            answer("tags = 2"),
            answer("tags = 14"),
            answer("tags = 2", "DbQA"),
            answer("tags = 0", "DbQA"),
            answer("wrong", format_valid=True),
            answer("nothing was submitted", submitted=False),
        ]
    )
    assert [(item.reason, item.count, item.families) for item in found] == [
        ("tags = 2 or more", 3, (("GWAS", 2), ("DbQA", 1))),
        ("tags = 0", 1, (("DbQA", 1),)),
    ]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("tags = 0", "tags = 0"),
        ("tags = 20", "tags = 2 or more"),
        ("unpaired tags: 1 open, 0 closed", "unpaired tags"),
        ("no option E", "no such option"),
        ("letter and text disagree", "letter and text disagree"),
        ("", "not recorded"),
    ],
)
def test_what_varies_between_equal_mistakes_is_folded(reason: str, expected: str) -> None:
    assert folded(reason) == expected


def test_the_grader_s_reasons_fold_to_few_names() -> None:
    reasons = {folded(case.reason) for case in DECISIONS if case.outcome == "invalid"}
    assert len(reasons) < 20
    assert not [reason for reason in reasons if re.search(r"\d{2}|: ", reason)]


@pytest.mark.spec("REP-05")
def test_the_page_lists_every_reason_of_each_measurement_beside_its_denominator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("report.html.figures", lambda view: [])
    view = assemble(rows())
    page = render(view)
    section = page[page.index("Answers that could not be read") :].split("</section>")[0]
    listed = re.findall(r'<td class="n">(\d+)/60</td>', section)
    expected = [found.count for item in view.measurements for found in item.malformed]
    assert expected
    assert [int(count) for count in listed] == expected
    first = view.measurements[0]
    assert first.layers is not None
    assert sum(found.count for found in first.malformed) == first.layers.format
    readable = [{**row, "detail": {}} for row in rows().measurements]
    assert "Answers that could not be read" not in render(assemble(replace(rows(), measurements=readable)))
