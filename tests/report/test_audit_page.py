"""The audit as a page, as a table and as JSON."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli import app
from report.audit_page import render, write
from report.audit_view import show_audit
from tests.fixtures.audited import audited, task
from verifier.audit import Audit


def example(lake: Path, name: str = "GENE1") -> Audit:
    (lake / "t.tsv").write_text("GENE1\tRIGHT1\n")
    rows = [(task(f"t{n}", question=f"Of GENE{n}, which?", options=("RIGHT1", "zz")), "A") for n in range(9)]
    rows += [(task("<b>v</b>", "val", "Of GENE1, which?", ("RIGHT1", "zz"), subtopic=f"<i>{name}</i>"), "A")]
    rows += [(task("w", "test", "Free?", subtopic="only here"), "x")]
    return audited(rows, lake)


def test_the_page_shows_every_flag_and_escapes_what_the_release_says(tmp_path: Path) -> None:
    audit = example(tmp_path)
    page = render("<script>x</script>", "sha256:" + "ab" * 32, audit)
    assert "<script>" not in page
    assert "<b>v</b>" not in page
    assert "&lt;i&gt;GENE1&lt;/i&gt;" in page
    assert len(audit.warnings) >= 3
    text = page.replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">")
    for flag in audit.flags:
        assert flag.text in text
    assert page == render("<script>x</script>", "sha256:" + "ab" * 32, audit)


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = write("mine", "", example(tmp_path), tmp_path / "deep" / "audit.html").read_text()
    assert not re.search(r"https?://|src=|@import|url\(", page)
    assert "default-src 'none'" in page
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "audit.html"]


def test_a_release_without_options_lake_or_second_split_has_a_page_and_a_table(tmp_path: Path) -> None:
    audit = audited([(task("a"), "x")])
    assert "No task has options." in render("bare", "", audit)
    console = Console(record=True, width=100, file=(tmp_path / "out").open("w"))
    show_audit("bare", audit, console)
    assert "1 tasks, 0 warnings" in console.export_text()


def test_the_table_marks_guess_only_and_brackets_in_names_are_no_markup(tmp_path: Path) -> None:
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    show_audit("[red]mine[/red]", example(tmp_path, "[bold]x"), console)
    text = console.export_text()
    assert "audit of [red]mine[/red]" in text
    assert "guess only" in text
    assert "[bold]x" in text


@pytest.mark.spec("DATA-05")
def test_release_audit_prints_a_table_or_json_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    shown = CliRunner().invoke(app, ["release", "audit", "open-genomics", "--page", str(page)])
    assert shown.exit_code == 0
    assert "audit of open-genomics: 360 tasks, 0 warnings" in shown.stdout
    assert "Audit of open-genomics" in page.read_text()
    plain = CliRunner().invoke(app, ["release", "audit", "open-genomics", "--json"])
    assert Audit.model_validate(json.loads(plain.stdout)).tasks == 360


def test_release_audit_of_no_release_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["release", "audit", str(tmp_path)])
    assert result.exit_code == 4
    assert "Traceback" not in result.output
