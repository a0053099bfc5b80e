"""The host's words to a program: short, complete, the same for all."""

from broker.guidance import host_guidance
from tests.fixtures.episodes import release, template
from verifier.inventory import Inventory, Table
from verifier.release import find


def test_the_guidance_names_the_tables_and_both_tags_in_few_words() -> None:
    text = host_guidance(find("open-genomics").inventory())
    assert "<execute>code</execute>" in text
    assert "<answer></answer>" in text
    assert "genes.tsv" in text
    assert "/lake" in text
    assert template().count(text) < 150, "the tiny tokenizer counts about twice as many tokens as a real one"
    assert "metals.csv" in host_guidance(release().inventory())


def test_many_tables_are_cut_and_none_are_left_out() -> None:
    tables = tuple(Table(path=f"/lake/t{i}.csv", rows=1, delimiter=",", columns=()) for i in range(9))
    assert "t5.csv and 3 more" in host_guidance(Inventory(tables=tables))
    assert "/lake" not in host_guidance(Inventory(tables=()))
