"""The public inventory of a lake, whatever files it holds (T13 and its kind)."""

import gzip
import json
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.audited import DATA, task
from tests.fixtures.releases import tiny_release
from verifier.draft import Draft
from verifier.freeze import Declared, freeze_draft
from verifier.inventory import INVENTORY_FILE, MOST_FILES, Inventory, Table, read_inventory
from verifier.inventory.content import HEAD
from verifier.inventory.pickles import describe_pickle
from verifier.release import Release

GMT = DATA / "local-only" / "playdata-gmt"


def only(folder: Path, name: str, data: bytes | str) -> Table:
    """The inventory's word on one file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    (table,) = [table for table in read_inventory(folder).tables if table.path == f"/lake/{name}"]
    assert Table.model_validate_json(table.model_dump_json()) == table
    return table


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


def test_a_table_has_the_fields_that_programs_know(tmp_path: Path) -> None:
    table = only(tmp_path, "t.csv", "a,b\n1,x\n")
    assert table.model_dump(mode="json") == {
        "path": "/lake/t.csv",
        "rows": 1,
        "delimiter": ",",
        "columns": [
            {"name": "a", "type": "integer", "example": "1"},
            {"name": "b", "type": "text", "example": "x"},
        ],
        "description": "",
    }


def test_a_column_has_the_narrowest_type_of_all_its_cells(tmp_path: Path) -> None:
    table = only(tmp_path, "t.csv", 'a,b,c,d,e,f\n1,1,,x,"1,5",nan\n-2,2.5,,1,"a\nb",1\n3,1e3,\n')
    assert [column.type for column in table.columns] == ["integer", "number", "text", "text", "text", "text"]
    assert table.rows == 3


def test_a_tab_separated_cell_may_hold_a_bare_quote(tmp_path: Path) -> None:
    table = only(tmp_path, "t.tsv", 'a\tb\n5" pipe\t1\nx\t2\n')
    assert (table.rows, table.columns[0].example) == (2, '5" pipe')


def test_a_list_pickle_a_dict_pickle_a_csv_and_a_zero_byte_file_T13(tmp_path: Path) -> None:
    (tmp_path / "list.pkl").write_bytes(pickle.dumps([1, 2, 3]))
    (tmp_path / "dict.pkl").write_bytes(pickle.dumps({"genes": 1, "terms": [2]}))
    (tmp_path / "good.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.csv").touch()
    said = {
        table.path: table for table in read_inventory(tmp_path, descriptions={"empty.csv": "Soon"}).tables
    }
    assert said["/lake/list.pkl"].description == "Python pickle: a list of 3 entries"
    assert said["/lake/dict.pkl"].description == "Python pickle: a dict of 2 entries, keys 'genes', 'terms'"
    assert [column.name for column in said["/lake/good.csv"].columns] == ["a", "b"]
    assert said["/lake/empty.csv"].description == "Soon (empty file)"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["x", "yy"], "a list of 2 entries, such as 'x', 'yy'"),
        ({"k": {"deep": 1}}, "a dict of 1 entry, keys 'k'"),
        ((1, 2, 3, 4), "a tuple of 4 entries"),
        ({}, "a dict of 0 entries"),
        ("text", "a value of type str"),
        (2.5, "a value of type float"),
        (None, "a value of type None"),
        ([[1]] * 5, "a list of 5 entries"),
        (list(range(5000)), "a list of 5000 entries"),
        ({str(n): n for n in range(3000)}, "a dict of 3000 entries, keys '0', '1', '2', '3'"),
        (OrderedDict(a=1), "an object of collections.OrderedDict"),
    ],
)
def test_a_pickle_of_any_protocol_is_told_without_loading(value: object, said: str, protocol: int) -> None:
    described = describe_pickle(pickle.dumps(value, protocol), complete=True)
    assert described.startswith(f"Python pickle: {said}"), described
    assert "loading" not in described


class Hostile:
    """Creates a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_never_executed_and_named(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "owned"
    data = pickle.dumps({"a": Hostile(target)}, protocol)
    table = only(tmp_path / "lake", "x.pkl", data)
    assert not target.exists()
    assert "loading it would import posix.system" in table.description
    # The same bytes do it when they are loaded: the test would notice an execution.
    pickle.loads(data)
    assert target.exists()


def test_truncated_endless_and_false_pickles_are_described(tmp_path: Path) -> None:
    whole = pickle.dumps({f"key{n}": list(range(50)) for n in range(100)})
    assert "damaged" in only(tmp_path, "cut.pkl", whole[:2000]).description
    assert "no Python pickle" in only(tmp_path, "text.pkl", "hello\n").description
    many = pickle.dumps(list(range(400_000)))
    assert "a list of at least" in only(tmp_path, "many.pkl", many).description
    # A length of four gigabytes in eleven bytes.
    assert "damaged" in only(tmp_path, "lie.pkl", b"\x80\x04]\x8e\xff\xff\xff\xff\0\0\0\0").description
    packed = only(tmp_path, "packed.pkl.gz", gzip.compress(whole)).description
    assert packed.startswith("Python pickle: a dict of 100 entries")
    assert packed.endswith("; gzipped")


def test_a_dataframe_pickle_is_told_without_pandas(tmp_path: Path) -> None:
    # As pandas writes it: a class of pandas, made by NEWOBJ, then a state.
    data = b"\x80\x04\x8c\x11pandas.core.frame\x8c\tDataFrame\x93)\x81}\x8c\x01a\x8c\x01bsb."
    said = only(tmp_path, "frame.pkl", data).description
    assert said == "Python pickle: an object of pandas.core.frame.DataFrame"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.gmt", "SET1\tna\tG1\tG2\nSET2\tna\tG3\n", "gene sets (GMT): 2 sets"),
        ("a.gmt", "SET1\tna\tG1\tG2\n", "such as 'SET1' of 2 genes"),
        ("a.gmt", "nothing\n", "without a gene set"),
        ("a.json", '{"b": [1], "c": 2}', "JSON: an object of 2 keys: b, c"),
        ("a.json", '[{"b": 1}, 2]', "JSON: a list of 2, the first an object of 1 keys: b"),
        ("a.json", '{"b": 1}\n{"b": 2}\n', "JSON lines: 2 lines"),
        ("a.json", "{", "damaged JSON"),
        ("a.json", "[" * 100_000, "damaged JSON"),
        ("a.jsonl", '{"b": 1}\n{"b": 2}\n', "JSON lines: 2 lines; the first is an object of 1 keys: b"),
        ("a.obo", "format-version: 1.2\n\n[Term]\nid: X:1\n\n[Term]\n", "OBO ontology: 2 terms"),
        ("a.fasta", ">a\nMK\n>b\nMV\n", "FASTA: 2 sequences"),
        ("README.md", "# Hello\n\nx\ty\n", "text, 3 lines, beginning '# Hello'"),
        ("LICENSE", "Permission is\ngranted\n", "text, 2 lines"),
        ("a.bin", b"\0\1\2", "not a table: binary, 3 bytes"),
        ("a.h5", b"\x89HDF\r\n\0\0", "not a table: HDF5"),
        ("a.xlsx", b"PK\x03\x04\0\0", "not a table: a ZIP archive"),
        ("a.csv", b"\xff\xfea\0,\0b\0", "unreadable as a table: NUL bytes"),
        ("a.csv", b"a,b\n1,\0\n", "unreadable as a table: NUL bytes"),
        ("._a.csv", "a,b\n", "resource fork"),
        ("a.csv.gz", b"\x1f\x8b\x08\0broken", "damaged gzip file"),
        ("a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 5000)[:60], "damaged gzip file"),
        ("a.parquet", b"PAR1 and then nothing", "broken Parquet file"),
        ("a.parquet", b"", "empty file"),
    ],
)
def test_a_file_that_is_no_table_is_told_in_one_line(
    tmp_path: Path, name: str, data: bytes | str, said: str
) -> None:
    table = only(tmp_path, name, data)
    assert said in table.description
    assert "\n" not in table.description
    assert table.delimiter == ""


@pytest.mark.parametrize(
    ("name", "data", "delimiter", "names"),
    [
        ("t.csv", "a;b\n1;2\n", ";", ["a", "b"]),
        ("t.csv", "a\tb\n1\t2\n", "\t", ["a", "b"]),
        ("t.csv", "a|b\n1|2\n", "|", ["a", "b"]),
        ("t.csv", 'a,b\n"x, y",2\n', ",", ["a", "b"]),
        ("t.csv", "only\n1\n2\n", ",", ["only"]),
        ("t.tsv", "a,b\tc\n1,5\t2\n", "\t", ["a,b", "c"]),
        ("t.tsv", "a,b\n1,2\n", ",", ["a", "b"]),
        ("t.txt", "a\tb\n1\t2\n", "\t", ["a", "b"]),
        ("t.labels", "a\tb\n1\t2\n", "\t", ["a", "b"]),
        ("t.csv", "\ufeffa,b\r\n1,2\r\n", ",", ["a", "b"]),
        ("t.tsv", "# made by hand\n## twice\na\tb\n1\t2\n", "\t", ["a", "b"]),
        ("t.tsv", "# made by hand\n#a\tb\n1\t2\n", "\t", ["#a", "b"]),
    ],
)
def test_the_delimiter_is_what_the_lines_agree_on(
    tmp_path: Path, name: str, data: str, delimiter: str, names: list[str]
) -> None:
    table = only(tmp_path, name, data)
    assert (table.delimiter, [column.name for column in table.columns]) == (delimiter, names)


def test_a_gzipped_table_has_columns_and_no_delimiter_for_plain_readers(tmp_path: Path) -> None:
    table = only(tmp_path, "t.tsv.gz", gzip.compress(b"a\tb\n1\t2\n"))
    assert ([column.name for column in table.columns], table.rows, table.delimiter) == (["a", "b"], 1, "")
    assert table.description == "gzipped; parted by '\\t'"


def test_a_table_that_is_not_utf8_is_read_and_said_so(tmp_path: Path) -> None:
    table = only(tmp_path, "t.csv", "name,x\nM\xfcller,1\n".encode("latin-1"))
    assert (table.columns[0].example, table.description) == ("Müller", "not UTF-8, read as Latin-1")


def test_a_hundred_thousand_columns_are_bounded(tmp_path: Path) -> None:
    table = only(
        tmp_path, "wide.csv", ",".join(f"c{n}" for n in range(100_000)) + "\n" + "1," * 99_999 + "1\n"
    )
    assert (len(table.columns), table.rows) == (200, 1)
    assert "100000 columns, of which the first 200 are listed" in table.description


def test_a_huge_table_is_read_in_part_and_its_rows_are_estimated(tmp_path: Path) -> None:
    line = b"12345,abcdefghijklmnop,1.5\n"
    number = 2 * HEAD // len(line)
    table = only(tmp_path, "huge.csv", b"a,b,c\n" + line * number)
    assert table.rows == pytest.approx(number, rel=1e-3)
    assert f"about {table.rows}, estimated from the first 16 MiB" in table.description
    assert [column.type for column in table.columns] == ["integer", "text", "number"]


def test_one_line_without_end_is_described(tmp_path: Path) -> None:
    assert only(tmp_path, "line.csv", b"x" * (HEAD + 100)).path == "/lake/line.csv"
    assert "text" in only(tmp_path, "line.txt", b"x" * (HEAD + 100)).description


def test_links_fifos_odd_names_and_unreadable_files_are_described(tmp_path: Path) -> None:
    outside = tmp_path / "secret.csv"
    outside.write_text("a\nprivate\n")
    lake = tmp_path / "lake"
    (lake / "folder.csv").mkdir(parents=True)
    (lake / "link.csv").symlink_to(outside)
    (lake / "linked").symlink_to(tmp_path)
    (lake / "gone").symlink_to(tmp_path / "nothing")
    os.mkfifo(lake / "pipe.csv")
    Path(os.fsdecode(os.fsencode(lake) + b"/\xff.csv")).write_text("a\n1\n")
    inventory = read_inventory(lake)
    said = {table.path: table.description for table in inventory.tables}
    assert said["/lake/link.csv"] == said["/lake/linked"] == said["/lake/gone"]
    assert "symbolic link" in said["/lake/gone"]
    assert said["/lake/pipe.csv"] == "not an ordinary file"
    assert "/lake/\ufffd.csv" in said
    assert "private" not in inventory.model_dump_json()


def test_more_files_than_can_be_told_are_counted(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 3):
        (tmp_path / f"{number:05d}.txt").touch()
    tables = read_inventory(tmp_path).tables
    assert len(tables) == MOST_FILES + 1
    assert tables[-1].description == "3 more files"


def test_parquet_is_described_by_its_footer(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lake = tmp_path / "lake"
    lake.mkdir()
    parquet.write_table(
        pa.table({"gene": ["TP53", "KRAS"], "length": [25759, 3], "score": [0.5, None]}), lake / "t.parquet"
    )
    parquet.write_table(pa.table({f"c{n}": [n] for n in range(300)}), lake / "wide.parquet")
    table, wide = read_inventory(lake).tables
    assert [(c.name, c.type, c.example) for c in table.columns] == [
        ("gene", "text", "TP53"),
        ("length", "integer", "25759"),
        ("score", "number", "0.5"),
    ]
    assert (table.rows, table.delimiter, table.description) == (2, "", "Parquet")
    assert len(wide.columns) == 200
    assert "300 columns" in wide.description


def test_parquet_without_its_extra_is_a_name_and_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert only(tmp_path, "t.parquet", b"PAR1" + bytes(20)).description == "Parquet, 24 bytes"


def test_a_frozen_draft_keeps_the_inventory_and_runs_read_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frozen(name: str, lake: dict[str, str]) -> Release:
        draft = Draft.create(tmp_path / f"draft-{name}")
        draft.fill([task("a")], {"a": {"answer": "x"}})
        draft.declare(sources=[], notes=[], lake_descriptions={"t.csv": "A table."})
        for path, text in lake.items():
            (draft.root / "lake").mkdir(exist_ok=True)
            (draft.root / "lake" / path).write_text(text)
        declared = Declared(name=name, licence="CC0-1.0", families={"f": ("s",)})
        freeze_draft(draft, tmp_path / name, declared)
        return Release.load(tmp_path / name)

    bare = frozen("bare", {})
    assert (INVENTORY_FILE in bare.header.payload, bare.inventory().tables) == (False, ())
    release = frozen("full", {"t.csv": "a,b\n1,2\n"})
    monkeypatch.setattr("verifier.release.read_inventory", None)
    inventory = release.inventory(["numpy 2"])
    assert [(table.path, table.rows, table.description) for table in inventory.tables] == [
        ("/lake/t.csv", 1, "A table.")
    ]
    assert inventory.libraries == ("numpy 2",)


def test_no_lake_is_an_empty_inventory() -> None:
    assert read_inventory(None) == Inventory(tables=())


@pytest.mark.skipif(not GMT.is_dir(), reason="the local data lake is not here (RINR_DATA)")
def test_the_gene_sets_of_the_real_lake_are_described() -> None:
    said = {table.path: table.description for table in read_inventory(GMT).tables}
    assert said["/lake/C6.MSigDB.gmt"].startswith("gene sets (GMT): 189 sets")
    assert "such as 'AKT_UP.V1_DN' of 213 genes" in said["/lake/C6.MSigDB.gmt"]
    assert len(json.dumps(said)) < 4000


def test_reading_an_inventory_imports_no_reader_of_pickles_or_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps([1]))
    code = (
        "import sys; from pathlib import Path; from verifier.inventory import read_inventory;"
        "read_inventory(Path(sys.argv[1]));"
        "print(sorted({'pandas', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


SUFFIXES = [
    *(".csv", ".tsv", ".txt", ".parquet", ".pkl", ".json", ".jsonl", ".gmt", ".obo", ".fa", ".bin", ""),
    *(".csv.gz", ".pkl.gz", ".gz", ".json.gz", ".parquet.gz", ".gmt.gz"),
]


@settings(max_examples=400, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.text(max_size=100).map(lambda text: text.encode(errors="replace")),
        st.text(st.sampled_from('a1,\t;|\n\r"#\0'), max_size=60).map(str.encode),
        st.binary(max_size=60).map(lambda data: b"\x80\x04" + data),
        st.lists(st.sampled_from(list(b"()]}.0123tsaeubRQhqrj\x85\x86\x87\x81\x93\x94\x8cX\x01a"))).map(
            bytes
        ),
        st.binary(max_size=80).map(gzip.compress),
        st.binary(max_size=40).map(lambda data: b"PAR1" + data + b"PAR1"),
    ),
    suffix=st.sampled_from(SUFFIXES),
)
def test_no_file_makes_the_inventory_raise(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    (folder / f"file{suffix}").write_bytes(data)
    (table,) = read_inventory(folder).tables
    assert table.path == f"/lake/file{suffix}"
    table.model_dump_json()
