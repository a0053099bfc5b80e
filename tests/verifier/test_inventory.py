"""The public inventory of a lake, whatever files it holds."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.releases import tiny_release
from verifier.inventory import Inventory, read_inventory


def test_tables_are_described_as_a_program_sees_them(tmp_path: Path) -> None:
    inventory = tiny_release(tmp_path).inventory(["numpy 2.3.5"])
    cities, metals = inventory.tables
    assert (cities.path, cities.rows, cities.delimiter) == ("/lake/cities.tsv", 8, "\t")
    assert (metals.path, metals.rows, metals.delimiter) == ("/lake/metals.csv", 8, ",")
    assert metals.description == "Metals with symbol, density and melting point."
    columns = [(column.name, column.type, column.example) for column in metals.columns]
    assert columns == [
        ("name", "text", "iron"),
        ("symbol", "text", "Fe"),
        ("density", "number", "7.87"),
        ("melting", "integer", "1538"),
    ]
    assert inventory.libraries == ("numpy 2.3.5",)
    assert Inventory.model_validate_json(inventory.model_dump_json()) == inventory


def test_a_column_has_the_narrowest_type_of_all_its_cells(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b,c,d,e,f\n1,1,,x,"1,5",nan\n-2,2.5,,1,"a\nb",1\n3,1e3,\n')
    (table,) = read_inventory(tmp_path).tables
    assert [column.type for column in table.columns] == ["integer", "number", "text", "text", "text", "text"]
    assert table.rows == 3


def test_a_tab_separated_cell_may_hold_a_bare_quote(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text('a\tb\n5" pipe\t1\nx\t2\n')
    (table,) = read_inventory(tmp_path).tables
    assert (table.rows, table.columns[0].example) == (2, '5" pipe')


def test_odd_files_are_described_and_never_fatal(tmp_path: Path) -> None:
    (tmp_path / "list.pkl").write_bytes(pickle.dumps([1, 2, 3]))
    (tmp_path / "dict.pkl").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "empty.csv").touch()
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00,\x80")
    (tmp_path / "header.tsv").write_text("a\tb\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "good.csv").write_text("a\n1\n")
    said = {
        table.path: table for table in read_inventory(tmp_path, descriptions={"empty.csv": "Soon"}).tables
    }
    assert len(said) == 6
    assert said["/lake/empty.csv"].description == "Soon (empty file)"
    assert said["/lake/list.pkl"].description.startswith("not a table")
    assert said["/lake/binary.csv"].description.startswith("unreadable")
    assert (said["/lake/header.tsv"].rows, said["/lake/header.tsv"].columns[1].name) == (0, "b")
    assert said["/lake/deep/good.csv"].rows == 1


def test_no_lake_is_an_empty_inventory() -> None:
    assert read_inventory(None) == Inventory(tables=())


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200), suffix=st.sampled_from([".csv", ".tsv", ".txt"]))
def test_no_file_makes_the_inventory_raise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    (folder / f"file{suffix}").write_bytes(data)
    (table,) = read_inventory(folder).tables
    assert table.path == f"/lake/file{suffix}"
    table.model_dump_json()
