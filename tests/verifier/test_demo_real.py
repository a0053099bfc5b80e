"""demo-real: 72 real tasks built with one command, and run end to end over their data lake."""

import json
from collections import Counter
from pathlib import Path

import pytest

from catalog.store import Store
from tests.fixtures.benchmark_files import DATA, lab_row, needs_data, write_lines
from tests.fixtures.command_line import ROOT, rinr
from tests.fixtures.sandboxes import QUICK
from tests.fixtures.stub_policy import known_answers
from tests.fixtures.stub_server import TINY_MODEL, StubServer
from verifier.build import RECIPES, Recipe, build, find_recipe
from verifier.id_list import read_ids
from verifier.layout import ReleaseError
from verifier.references import Reference, ReferenceError
from verifier.release import Release
from verifier.verification import verify

LAKE = (
    "C1.MSigDB.gmt",
    "C6.MSigDB.gmt",
    "MGI_Mammalian_Phenotype_Level_4_2021.gmt",
    "Virus-Host_PPI_P-HIPSTer_2020.gmt",
)
needs_lake = pytest.mark.skipif(
    not (DATA / "local-only/playdata-gmt" / LAKE[0]).is_file(),
    reason="the gene sets of demo-real's lake are not here (RINR_DATA)",
)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """demo-real, built by the command line as a user builds it."""
    folder = tmp_path_factory.mktemp("demo") / "demo-real"
    settings = ["--data", str(DATA.resolve()), "--store", str(folder.parent / "store")]
    done = rinr("release", "build", "demo-real", str(folder), *settings)
    assert done.returncode == 0, done.stderr
    assert "splits: 48 train, 12 val, 12 test" in done.stdout
    assert "material groups in two splits: 0 train-val, 0 train-test, 0 val-test" in done.stdout
    assert "row 161: two options have the same text" in done.stdout
    verify(folder)
    return Release.load(folder)


@needs_data
@needs_lake
@pytest.mark.spec("DATA-01", "DATA-02")
def test_demo_real_is_the_72_tasks_of_its_id_list(release: Release) -> None:
    ids = read_ids(DATA / "demo-real/demo_split_ids.json")
    assert {task.id: task.split for task in release.tasks} == dict(ids.splits)
    families = Counter((task.family, task.split) for task in release.tasks)
    assert (families["DbQA", "train"], families["DbQA", "val"]) == (28, 7)
    assert {family for family, _ in families} == {"DbQA", "GWAS", "LitQA2", "ProtocolQA"}
    assert len({task.material_group for task in release.tasks}) == 72
    assert release.no_training
    assert sum(len(record.dropped) for record in release.header.imports) == 15
    # Of the subtopics that have a task in Test, each has one in Val.
    assert {t.subtopic for t in release.split("test")} == {t.subtopic for t in release.split("val")}


@needs_data
@needs_lake
@pytest.mark.spec("EVID-02")
def test_what_the_sources_withhold_is_nowhere_in_the_public_half(release: Release) -> None:
    rows = [
        json.loads(line)
        for line in (DATA / "LAB-Bench/LitQA2/litqa-v2-public.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    kept = {task.id for task in release.tasks}
    withheld = [
        text for row in rows if row["id"] in kept for text in (row["key-passage"], *row["sources"]) if text
    ]
    assert len(withheld) >= 7
    public = (release.root / "public/tasks.jsonl").read_text(encoding="utf-8")
    assert not [text for text in withheld if text in public]


@needs_data
@needs_lake
@pytest.mark.spec("DATA-02")
def test_building_twice_gives_one_digest(release: Release, tmp_path: Path) -> None:
    again = build(find_recipe("demo-real"), DATA, tmp_path / "again")
    assert again.header.digest == release.digest


@needs_data
@needs_lake
@pytest.mark.slow
def test_the_seed_harness_runs_over_demo_real_and_its_lake(release: Release, tmp_path: Path) -> None:
    known = known_answers([release.root])
    looked: set[str] = set()

    def policy(prompt: str, seed: int, temperature: float) -> str:
        asked = next(known[text] for text in known if text in prompt)
        if "Observation:" not in prompt:
            return "<execute>\nimport os\nprint(sorted(os.listdir('/lake')))\n</execute>"
        if all(name in prompt for name in LAKE):
            looked.add(asked.task.id)
            return f"<answer>{asked.answer}</answer>"
        return "<answer>the lake is not there</answer>"

    with StubServer(policy=policy) as stub:
        chosen = [
            "budgets.context_tokens=24576",
            "model.served_name=stub",
            QUICK,
            f"storage.root={tmp_path / 'runs'}",
        ]
        done = rinr(
            *("evaluate", "--harness", str(ROOT / "harness_lab/programs/h0.py"), "--split", "val"),
            *("--model", stub.url, "--tokenizer", str(TINY_MODEL), "--release", str(release.root)),
            *(word for setting in chosen for word in ("--set", setting)),
        )
    assert done.returncode == 0, done.stderr
    assert "12 of 12 first answers right" in done.stdout
    assert looked == {task.id for task in release.split("val")}


@pytest.mark.parametrize("withheld", ['"text"', "[]", '{"a": 1}', '{"a": [1]}', '{"a": null}'])
def test_what_is_withheld_is_texts_by_name(withheld: str) -> None:
    line = f'{{"task": "t", "answer": "A", "withheld": {withheld}}}'.encode()
    with pytest.raises(ReferenceError, match="withheld: texts or lists of texts by name"):
        Reference.from_json(line)
    kept = Reference.from_json(b'{"task": "t", "answer": "A", "withheld": {"a": "x", "b": ["y", "z"]}}')
    assert not hasattr(kept, "withheld")


SMALL = """
name = "small"
sizes = {{ train = 4, val = 1, test = 1 }}
[[source]]
importer = "lab-bench"
path = "LAB-Bench"
{more}
"""


def small_data(root: Path) -> Path:
    write_lines(root / "LAB-Bench/DbQA/dga_task-v1-public.jsonl", [lab_row(f"q{n}") for n in range(8)])
    (root / "tables").mkdir()
    (root / "tables/a.csv").write_text("x,y\n1,2\n")
    return root


def small_recipe(path: Path, more: str = "", text: str = SMALL) -> Recipe:
    path.write_text(text.format(more=more), encoding="utf-8")
    return find_recipe(str(path))


def test_a_recipe_file_of_ones_own_builds_with_an_own_split_and_a_lake(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    recipe = small_recipe(
        tmp_path / "r.toml", '[lake]\nfolder = "tables"\nfiles = { "a.csv" = "Two numbers." }'
    )
    built = build(recipe, data, tmp_path / "out")
    assert dict(built.header.counts) == {"train": 4, "val": 1, "test": 1}
    assert built.header.lake_descriptions == {"a.csv": "Two numbers."}
    assert "lake/a.csv" in built.header.payload
    assert built.split.left_out == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert (tmp_path / "out/lake/a.csv").stat().st_nlink == 1


@pytest.mark.spec("DATA-02")
def test_two_builds_over_one_store_use_the_lake_s_bytes_once(tmp_path: Path) -> None:
    data, store = small_data(tmp_path / "data"), Store(tmp_path / "store")
    recipe = small_recipe(tmp_path / "r.toml", '[lake]\nfolder = "tables"\nfiles = { "a.csv" = "Numbers." }')
    one, other = (build(recipe, data, tmp_path / name, store) for name in ("one", "other"))
    assert one.header == other.header
    first, second = (tmp_path / name / "lake/a.csv" for name in ("one", "other"))
    assert first.stat().st_ino == second.stat().st_ino != (data / "tables/a.csv").stat().st_ino


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", r"r\.toml: no TOML"),
        ('name = "x"\nsizes = { train = 1 }\n', r"r\.toml: source: Field required"),
        (
            SMALL.format(more="").replace("lab-bench", "lab_bench"),
            r"source\.0\.importer: Input should be 'lab-bench'",
        ),
        (SMALL.format(more='drop = ["everything"]'), r"source\.0\.drop\.0: Input should be"),
        (SMALL.format(more="colour = 1"), r"colour: Extra inputs"),
        (SMALL.format(more="").replace("sizes", "ids = 'x'\nsizes"), "a recipe has either ids or sizes"),
        (SMALL.format(more="").replace('"LAB-Bench"', '"../x"'), r"source\.0\.path"),
    ],
)
def test_a_malformed_recipe_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ReleaseError, match=said) as caught:
        find_recipe(str(tmp_path / "r.toml"))
    assert "\n" not in str(caught.value)


def test_what_a_recipe_misses_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="no recipe 'demo-unreal': name a TOML file, or one of: demo-real"):
        find_recipe("demo-unreal")
    data = small_data(tmp_path / "data")
    lake = '[lake]\nfolder = "tables"\nfiles = {{ "{name}" = "x" }}'
    cases = [
        (
            small_recipe(tmp_path / "a.toml", lake.format(name="b.csv")),
            data,
            "tables/b.csv is missing; a lake",
        ),
        (
            small_recipe(tmp_path / "b.toml", lake.format(name="../../x")),
            data,
            "not a plain path inside the lake",
        ),
        (small_recipe(tmp_path / "c.toml"), tmp_path / "none", "none: no such folder"),
        (
            small_recipe(tmp_path / "d.toml", text=SMALL.replace('"LAB-Bench"', '"LAB"')),
            data,
            "LAB: no such file",
        ),
    ]
    for recipe, folder, said in cases:
        with pytest.raises(ReleaseError, match=said):
            build(recipe, folder, tmp_path / "out" / "release")
        assert list((tmp_path / "out").glob("*")) == []
    (tmp_path / "taken").mkdir()
    with pytest.raises(ReleaseError, match="exists already"):
        build(small_recipe(tmp_path / "e.toml"), data, tmp_path / "taken")


def test_every_recipe_of_ours_reads() -> None:
    names = [path.stem for path in RECIPES.glob("*.toml")]
    assert "demo-real" in names
    assert [find_recipe(name).name for name in names] == names
