"""Splits: id lists as they are given, and tasks dealt by hash, groups whole, subtopics in proportion."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verifier import draft as drafts
from verifier.apportion import largest_remainder
from verifier.draft import Draft
from verifier.freeze import Declared, freeze_draft
from verifier.id_list import read_ids
from verifier.layout import SPLITS, ReleaseError
from verifier.release import Release
from verifier.split import split, split_by_ids, wanted_counts
from verifier.task import AnswerFormat, Question, Split

Cell = tuple[str, str, int]
"""Subtopic, material group, tasks of it."""


def make_draft(root: Path, cells: list[Cell], *, backwards: bool = False) -> Draft:
    rows = [
        Question(
            id=f"{subtopic}-{group}-{number}",
            family="f",
            subtopic=subtopic,
            material_group=group,
            prompt=f"{subtopic} {group} {number}?",
            answer_format=AnswerFormat.TEXT,
        )
        for subtopic, group, count in cells
        for number in range(count)
    ]
    Draft.create(root)
    lines = [orjson.dumps(row.model_dump(mode="json")) + b"\n" for row in rows]
    (root / drafts.TASKS).write_bytes(b"".join(reversed(lines) if backwards else lines))
    (root / drafts.REFERENCES).write_bytes(
        b"".join(orjson.dumps({"task": row.id, "answer": "x"}) + b"\n" for row in rows)
    )
    families = tuple(sorted({row.subtopic for row in rows}))
    (root / drafts.HEADER).write_text(
        drafts.DraftHeader(licences=("CC0-1.0",), families={"f": families}).model_dump_json()
    )
    return Draft(root)


@st.composite
def drafts_and_sizes(draw: st.DrawFn, common: bool = True) -> tuple[list[Cell], dict[Split, int], str]:
    """Up to five subtopics of up to twelve groups; with `common`, some groups occur in two subtopics."""
    subtopics = draw(st.integers(1, 5))
    cells = [
        (
            f"s{number}",
            f"g{number}-{group}" if not common or draw(st.integers(0, 5)) else f"common-{group}",
            count,
        )
        for number in range(subtopics)
        for group, count in enumerate(draw(st.lists(st.integers(1, 6), min_size=1, max_size=12)))
    ]
    total = sum(count for _, _, count in cells)
    val = draw(st.integers(0, total // 4))
    test = draw(st.integers(0, total // 4))
    train = draw(st.integers(1, total - val - test))
    return cells, {"train": train, "val": val, "test": test}, draw(st.text(max_size=3))


PROPERTY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("splits")


_made = iter(range(1_000_000))


def fresh(folder: Path, cells: list[Cell], **options: bool) -> Draft:
    return make_draft(folder / str(next(_made)), cells, **options)


def cells_of(draft: Draft) -> dict[str, tuple[str, str]]:
    return {question.id: (question.subtopic, question.material_group) for question in draft.questions()}


@pytest.mark.spec("DATA-01", "DATA-03")
@given(case=drafts_and_sizes())
@PROPERTY
def test_splits_are_disjoint_and_groups_stay_whole(folder: Path, case: Any) -> None:
    cells, sizes, seed = case
    draft = fresh(folder, cells)
    result = split(draft, sizes, seed=seed)
    splits, places = draft.splits(), cells_of(draft)
    assert len((draft.root / drafts.SPLITS).read_text().splitlines()) == len(splits)
    assert Counter(splits.values()) == Counter({name: n for name, n in result.counts.items() if n})
    assert result.left_out == len(places) - len(splits) == draft.header.left_out
    where: dict[str, set[str | None]] = defaultdict(set)
    for task_id, (_, group) in places.items():
        where[group].add(splits.get(task_id))
    assert all(len(held) == 1 for held in where.values())
    assert set(result.shared_groups.values()) == {0}


@given(case=drafts_and_sizes())
@PROPERTY
def test_an_equal_draft_splits_equally_whatever_the_order_of_its_tasks(folder: Path, case: Any) -> None:
    cells, sizes, seed = case
    one, two = fresh(folder, cells), fresh(folder, cells, backwards=True)
    split(one, sizes, seed=seed)
    split(two, sizes, seed=seed)
    assert one.splits() == two.splits()


@pytest.mark.spec("DATA-05")
@given(case=drafts_and_sizes())
@PROPERTY
def test_tasks_that_are_groups_of_their_own_split_exactly_and_in_proportion(folder: Path, case: Any) -> None:
    cells, sizes, seed = case
    draft = fresh(folder, cells)
    result = split(draft, sizes, seed=seed, break_groups=True)
    assert dict(result.counts) == sizes
    total, named = sum(count for _, _, count in cells), Counter[str]()
    for subtopic, _, count in cells:
        named[f"f/{subtopic}"] += count
    subtopics = len(named)
    for name, placed in result.subtopics.items():
        for split_name in SPLITS:
            ideal = sizes[split_name] * named[name] / total
            # One from rounding each split, and one where a rare subtopic is given a seat.
            assert abs(placed[split_name] - ideal) <= 1 + (3 if sizes[split_name] < 3 * subtopics else 2)


@pytest.mark.spec("DATA-05")
@given(case=drafts_and_sizes(common=False))
@PROPERTY
def test_subtopics_of_whole_groups_are_in_proportion_within_the_size_of_groups(
    folder: Path, case: Any
) -> None:
    cells, sizes, seed = case
    result = split(fresh(folder, cells), sizes, seed=seed)
    total, named = sum(count for _, _, count in cells), Counter[str]()
    for subtopic, _, count in cells:
        named[f"f/{subtopic}"] += count
    largest = max(count for _, _, count in cells)
    for name, placed in result.subtopics.items():
        for split_name in SPLITS:
            ideal = sizes[split_name] * named[name] / total
            assert abs(placed[split_name] - ideal) <= 2 + 2 * largest, (name, split_name)


@pytest.mark.spec("DATA-05")
@given(case=drafts_and_sizes())
@PROPERTY
def test_a_subtopic_with_three_groups_of_its_own_is_in_every_split(folder: Path, case: Any) -> None:
    cells, sizes, seed = case
    draft = fresh(folder, cells)
    result = split(draft, sizes, seed=seed)
    groups: dict[str, set[str]] = defaultdict(set)
    for subtopic, group, _ in cells:
        groups[group].add(subtopic)
    own = Counter(f"f/{next(iter(held))}" for held in groups.values() if len(held) == 1)
    rich = [name for name, count in own.items() if count >= 3]
    for name in rich:
        for split_name in SPLITS:
            if sizes[split_name] >= len(rich):
                assert result.subtopics[name][split_name] > 0, (name, split_name)


@given(case=drafts_and_sizes())
@PROPERTY
def test_counts_are_as_near_as_whole_groups_go_and_a_miss_is_printed(folder: Path, case: Any) -> None:
    cells, sizes, seed = case
    result = split(fresh(folder, cells), sizes, seed=seed)
    weights = Counter[str]()
    for _, group, count in cells:
        weights[group] += count
    for name in SPLITS:
        missed = abs(result.counts[name] - sizes[name])
        assert missed <= 2 * max(weights.values())
        said = f"{name} has {result.counts[name]} tasks, not {sizes[name]}"
        assert any(said in warning for warning in result.warnings) == (missed > 0)


@pytest.mark.spec("DATA-05")
def test_groups_of_several_sizes_still_meet_the_counts_exactly(tmp_path: Path) -> None:
    cells = [(f"s{s}", f"s{s}-g{g}", 1 + g % 5) for s in range(8) for g in range(40)]
    result = split(make_draft(tmp_path / "d", cells), {"train": 0.8, "val": 0.1, "test": 0.1})
    assert dict(result.counts) == {"train": 768, "val": 96, "test": 96}
    assert all(placed == {"train": 96, "val": 12, "test": 12} for placed in result.subtopics.values())
    assert result.warnings == ()


def test_another_seed_gives_another_split(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", [("s", f"g{g}", 1) for g in range(60)])
    drawn: set[frozenset[str]] = set()
    for seed in ("a", "b"):
        split(draft, {"train": 40, "val": 10, "test": 10}, seed=seed)
        drawn.add(frozenset(task_id for task_id, name in draft.splits().items() if name == "val"))
    assert len(drawn) == 2


@pytest.mark.spec("DATA-03")
def test_broken_groups_are_counted_between_splits_and_printed(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", [("s", "one", 30), ("s", "two", 30)])
    result = split(draft, {"train": 20, "val": 20, "test": 20}, break_groups=True)
    assert set(result.shared_groups.values()) == {2}
    assert "material groups in two splits: 2 train-val, 2 train-test, 2 val-test" in list(result.lines())
    assert "groups broken" in draft.header.split_rule


def test_a_group_too_large_for_its_split_is_reported_not_cut(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", [("s", "whale", 90), ("s", "minnow", 5), ("s", "perch", 5)])
    result = split(draft, {"train": 80, "val": 10, "test": 10})
    assert sorted(result.counts.values()) == [5, 5, 90]
    assert any("train has 90 tasks, not 80" in line for line in result.lines())


def test_tasks_that_were_not_asked_for_are_left_out_of_the_release(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", [("s", f"g{g}", 1) for g in range(50)] + [("rare", "r", 1)])
    (draft.root / drafts.PRIVATE_FILES / "s-g0-0").mkdir(parents=True)
    (draft.root / drafts.PRIVATE_FILES / "s-g0-0" / "x.sh").write_text("true\n")
    split(draft, {"train": 6, "val": 2, "test": 2})
    assert "s-g0-0" not in draft.splits()
    header = freeze_draft(draft, tmp_path / "release", Declared(name="small"))
    assert dict(header.counts) == {"train": 6, "val": 2, "test": 2}
    assert not any("s-g0-0" in name for name in header.payload)
    assert len(Release.load(tmp_path / "release").tasks) == 10


def test_tasks_imported_after_a_split_do_not_vanish_with_those_left_out(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", [("s", f"g{g}", 1) for g in range(20)])
    split(draft, {"train": 6, "val": 2, "test": 2})
    with (draft.root / drafts.TASKS).open("a") as handle:
        row = next(draft.questions()).model_copy(update={"id": "late"})
        handle.write(row.model_dump_json() + "\n")
    with pytest.raises(ReleaseError, match="11 tasks have no split"):
        freeze_draft(draft, tmp_path / "release", Declared(name="small"))


def ids_file(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


BY_FAMILY = {
    "seed": "x",
    "splits": {
        "train": {"f": [{"id": "s-g0-0", "subtopic": "other"}, {"id": "s-g1-0"}]},
        "val": {"f": ["s-g2-0"]},
        "test": {"f": [{"id": "s-g3-0"}]},
    },
}
PLAIN = {"train": ["s-g0-0", "s-g1-0"], "val": ["s-g2-0"], "test": ["s-g3-0"]}


@pytest.mark.spec("DATA-01")
@pytest.mark.parametrize("layout", [BY_FAMILY, PLAIN])
def test_an_id_list_is_followed_to_the_letter(tmp_path: Path, layout: object) -> None:
    draft = make_draft(tmp_path / "d", [("s", f"g{g}", 1) for g in range(5)])
    ids = read_ids(ids_file(tmp_path / "ids.json", layout))
    result = split_by_ids(draft, ids)
    assert draft.splits() == {"s-g0-0": "train", "s-g1-0": "train", "s-g2-0": "val", "s-g3-0": "test"}
    assert result.left_out == 1
    assert ids.digest in draft.header.split_rule
    with pytest.raises(ReleaseError, match=r"does not name 1 \('s-g4-0'\)"):
        split_by_ids(draft, ids, complete=True)


def test_ids_that_the_draft_lacks_are_named(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", [("s", "g0", 1)])
    ids = read_ids(
        ids_file(tmp_path / "ids.json", {"train": ["s-g0-0"], "val": ["ghost"], "test": ["spook"]})
    )
    with pytest.raises(ReleaseError, match=r"ids\.json: 2 \('ghost', 'spook'\) of its ids are no tasks"):
        split_by_ids(draft, ids)
    assert draft.splits() == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "an id list looks like"),
        ({}, "it names no task"),
        ({"train": ["a"], "validation": ["b"]}, "'validation' is no split"),
        ({"train": ["a"], "val": ["a"]}, "'a' appears twice, in train and in val"),
        ({"train": ["a", "a"]}, "'a' appears twice, in train and in train"),
        ({"train": "a"}, "train: a list of ids belongs here"),
        ({"train": ["a", 3]}, "train, entry 2: an id is a text"),
        ({"splits": {"train": {"f": [{"name": "a"}]}}}, r"train\.f, entry 1: an id is a text"),
    ],
)
def test_a_malformed_id_list_is_refused_by_entry(tmp_path: Path, value: object, said: str) -> None:
    with pytest.raises(ReleaseError, match=said):
        read_ids(ids_file(tmp_path / "ids.json", value))


def test_an_id_list_that_is_no_json_or_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text('{"train": [')
    with pytest.raises(ReleaseError, match=r"ids\.json: no JSON \(.*line 1\)"):
        read_ids(tmp_path / "ids.json")
    with pytest.raises(ReleaseError, match="No such file"):
        read_ids(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ({"train": 700, "val": 90, "test": 90}, (700, 90, 90)),
        ({"train": 0.8, "val": 0.1, "test": 0.1}, (716, 90, 89)),
        ({"train": 1.0}, (895, 0, 0)),
        ({"train": 1, "val": 1, "test": 1}, (1, 1, 1)),
        ({"train": 0.5, "val": 0.05, "test": 0.05}, (447, 45, 45)),
    ],
)
def test_sizes_are_counts_or_shares(sizes: dict[Split, float], counts: tuple[int, ...]) -> None:
    assert tuple(wanted_counts(sizes, 895).values()) == counts


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"train": 800, "val": 90, "test": 90}, "asked for 980 tasks .* and the draft has 895"),
        ({"train": 0.9, "val": 0.1, "test": 0.1}, "add up to at most 1"),
        ({"train": 10, "val": 0.5}, "all counts, or all shares"),
        ({"train": -1}, "not negative"),
        ({}, "not all 0"),
    ],
)
def test_sizes_that_make_no_split_are_refused(sizes: dict[Split, float], said: str) -> None:
    with pytest.raises(ReleaseError, match=said):
        wanted_counts(sizes, 895)


@pytest.mark.spec("DATA-05")
def test_t14_val_and_test_without_a_common_subtopic_are_warned_of(tmp_path: Path) -> None:
    cells = [("a", f"a{g}", 1) for g in range(4)] + [("b", f"b{g}", 1) for g in range(4)]
    draft = make_draft(tmp_path / "d", cells)
    lists = {"train": ["a-a0-0", "b-b0-0"], "val": ["a-a1-0", "a-a2-0"], "test": ["b-b1-0", "b-b2-0"]}
    result = split_by_ids(draft, read_ids(ids_file(tmp_path / "ids.json", lists)))
    assert "warning: val and test have no subtopic in common: val says nothing about test" in list(
        result.lines()
    )
    assert "val has no task of f/b" in result.warnings
    own = split(draft, {"train": 4, "val": 2, "test": 2})
    assert own.warnings == ()


@given(
    total=st.integers(0, 500),
    weights=st.lists(st.integers(0, 100), min_size=1, max_size=8),
)
def test_largest_remainder_is_exact_and_within_one_of_the_ideal(total: int, weights: list[int]) -> None:
    given_ = largest_remainder(total, weights, [0] * len(weights), [total] * len(weights))
    assert sum(given_) == total
    if sum(weights):
        assert all(abs(g - total * w / sum(weights)) < 1 for g, w in zip(given_, weights, strict=True))
