import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_run import HOSTILE, TESTS, rows

from report.assemble import RunRows, assemble, difference, layer, layers
from report.figures import figures
from report.headline import headline
from report.html import render, write
from rl.contract import RlContract

VOID = {"meta", "br", "img", "input", "hr", "link", "path", "use", "rect", "stop"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps tags, ids and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page_text() -> str:
    return render(assemble(rows()))


@pytest.fixture(scope="module")
def page(page_text: str) -> Page:
    parsed = Page()
    parsed.feed(page_text)
    parsed.close()
    return parsed


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds and say nothing about the words."""

    def none(_view: object) -> list[tuple[str, str]]:
        return []

    monkeypatch.setattr("report.html.figures", none)


def test_the_page_is_well_formed_and_no_id_stands_twice(page: Page):
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {"table", "svg", "figure", "details"} <= set(page.tags)


def test_the_page_names_no_outside_address_and_runs_no_script(page: Page, page_text: str):
    assert not re.search(r"https?:|//[a-z]|@import|src\s*=|url\((?!#)", page_text)
    assert not {"script", "img", "iframe", "object", "embed", "link"} & set(page.tags)


def test_a_script_in_a_program_or_a_hypothesis_is_shown_as_text(page: Page, page_text: str):
    assert HOSTILE not in page_text
    assert "# " + HOSTILE in page.text, "the program difference shows it"
    assert f"without a lookup {HOSTILE}" in page.text, "the hypothesis shows it"


@pytest.mark.spec("REP-01")
def test_every_percentage_of_the_boundary_table_stands_beside_its_denominator(page_text: str):
    table = page_text[page_text.index("Accuracy at each boundary") :]
    lead, body = table.split("<tbody>")[0], table.split("<tbody>")[1].split("</tbody>")[0]
    assert "1 attempt a task" in lead
    lines = [line for line in re.findall(r"<tr.*?</tr>", body, re.DOTALL) if "%" in line]
    assert len(lines) == 12
    assert all(f"/{TESTS}</td>" in line for line in lines)


@pytest.mark.spec("REP-01")
def test_the_headline_names_denominator_and_attempts(page: Page):
    assert f"2/{TESTS} tasks, 1 attempt each" in page.text
    assert f"55/{TESTS} tasks, 1 attempt each" in page.text


@pytest.mark.spec("REP-02")
def test_splits_are_labelled_by_what_they_are_used_for(page: Page):
    for label in (
        "Val (selection)",
        "Test (recorded at stage boundaries)",
        "Train reward (changing samples)",
    ):
        assert label in page.text


@pytest.mark.usefixtures("without_figures")
@pytest.mark.spec("REP-03")
def test_an_inherited_measurement_names_the_run_that_measured_it():
    inherited = [{**row, "run_id": "older-run"} if row["cycle"] == 1 else row for row in rows().measurements]
    text = render(assemble(replace(rows(), measurements=inherited)))
    assert "measured by run older-run" in text
    assert "measured by run" not in render(assemble(rows()))


@pytest.mark.usefixtures("without_figures")
@pytest.mark.spec("REP-04")
def test_a_release_that_asks_not_to_be_trained_on_is_named_where_its_model_is_reported():
    base = rows()
    marked = replace(base, run={**base.run, "config": {**base.run["config"], "no_training": True}})
    assert "asks not to be trained on" in render(assemble(marked))
    assert "asks not to be trained on" not in render(assemble(base))


def test_equal_runs_give_equal_pages(page_text: str):
    assert render(assemble(rows())) == page_text


def test_figures_are_drawn_in_the_page_s_colours():
    drawn = dict(figures(assemble(rows())))
    assert list(drawn) == ["accuracy", "reward", "layers", "families"]
    for text in drawn.values():
        assert text.startswith("<svg")
        assert "var(--s1)" in text or "var(--s3)" in text
        assert not re.search(r"#0102\w\w|http", text)


def test_a_figure_shows_a_hostile_family_name_as_text():
    measurement = rows().measurements[0]
    outcomes = [{**item, "family": "<script>$x_{$</script>"} for item in measurement["detail"]["outcomes"]]
    hostile = {**measurement, "detail": {"outcomes": outcomes}}
    drawn = dict(figures(assemble(RunRows(run={"run_id": "x"}, measurements=[hostile]))))
    assert "<script" not in drawn["families"]
    assert "&lt;script&gt;$x_{$&lt;/script&gt;" in drawn["families"]


@pytest.mark.usefixtures("without_figures")
def test_text_that_has_no_utf8_form_does_not_lose_the_report(tmp_path: Path):
    body = {**rows().decisions[0]["decision"], "reason": "half a pair \ud800"}
    odd = replace(rows(), decisions=[{"cycle": 1, "step": 1, "decision": body}])
    assert "half a pair ?" in write(assemble(odd), tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.spec("REP-05")
def test_every_episode_is_in_exactly_one_layer():
    base = {"correct": False, "format_valid": True, "submitted": True, "tool_errors": 0, "error": None}
    cases = {
        "correct": {**base, "correct": True, "tool_errors": 3},
        "wrong": base,
        "tool": {**base, "tool_errors": 1},
        "format": {**base, "format_valid": False, "tool_errors": 1},
        "unfinished": {**base, "format_valid": False, "submitted": False, "stop_reason": "time_budget"},
    }
    assert [layer(outcome) for outcome in cases.values()] == list(cases)
    counted = layers(list(cases.values()))
    assert sum(counted.count(name) for name in cases) == 5
    assert counted.reasons == (("time_budget", 1),)


@pytest.mark.spec("REP-05")
def test_the_headline_tells_completion_from_hit_rate():
    head = headline(assemble(rows()))
    assert head is not None
    assert head.moved.startswith("Both parts rose: readable first answers went from 20/60 to 60/60")
    assert [(part.name, part.gain) for part in head.parts] == [("Harness phases", 30), ("RL phases", 23)]
    assert head.paired is not None
    assert head.paired.fixed - head.paired.broken == 53


def test_the_adopted_candidate_carries_its_difference_from_the_parent():
    view = assemble(rows())
    winner = view.decisions[0].winner
    assert winner is not None
    assert winner.status == "adopted"
    assert any(line.mark == "+" and "HINT_0" in line.text for line in winner.diff)
    assert view.decisions[1].winner is None
    assert difference("same", "same") == ()


@pytest.mark.usefixtures("without_figures")
def test_an_unfinished_run_and_bare_sums_still_make_a_page():
    bare = {name: value for name, value in rows().measurements[0].items() if name != "detail"}
    view = assemble(RunRows(run={"run_id": "young"}, measurements=[bare]))
    assert "2/60" in render(view)
    assert "No Test measurement was recorded" in render(assemble(RunRows(run={"run_id": "empty"})))


@pytest.mark.usefixtures("without_figures")
def test_the_page_replaces_an_older_one_whole(tmp_path: Path):
    path = tmp_path / "new" / "report.html"
    assert write(assemble(rows()), path) == path
    write(assemble(rows()), path)
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]


@pytest.mark.spec("RL-04")
def test_the_page_says_what_training_was_rewarded_for(without_figures: None) -> None:
    made = rows()
    plain = render(assemble(made))
    assert "the verdict on the submitted answer, 0 or 1: the mean over the changing tasks" in plain
    contract = RlContract(reward="rubric").model_dump(mode="json")
    run = {**made.run, "config": {**made.run["config"], "rl": contract}}
    page = render(assemble(replace(made, run=run)))
    assert "R of the task's rubric, from 0 to 1 (rl.reward=rubric" in page
    assert "the verdict on the submitted answer" not in page
