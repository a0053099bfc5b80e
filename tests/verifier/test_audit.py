"""The release audit: baselines, balance, duplicates, flags, and what it never says (DATA-05)."""

from pathlib import Path

import pytest

from tests.fixtures.audited import audited, task
from tests.fixtures.releases import tiny_release
from verifier.audit import AUDIT_FILE, Audit, audit
from verifier.audit.model import Baseline, Rule
from verifier.audit_release import audit_folder, audit_of
from verifier.draft import Draft
from verifier.freeze import Declared, freeze_draft
from verifier.layout import ReleaseError
from verifier.release import Release, find
from verifier.task import Split

FOUR = ("aa", "bbbb", "cc", "dd")


def baseline(result: Audit, split: str, rule: Rule) -> Baseline:
    (found,) = [item for item in result.baselines if item.split == split]
    return next(item for item in found.baselines if item.rule == rule)


def codes(result: Audit, level: str = "warning") -> list[str]:
    return [flag.code for flag in result.flags if flag.level == level]


@pytest.mark.spec("DATA-05")
def test_baselines_are_counted_per_split_within_options_and_over_the_whole_split() -> None:
    rows = [(task(f"a{n}", "train", options=FOUR), "B") for n in range(6)]
    rows += [(task("a6", "train", options=FOUR), "A"), (task("a7", "train"), "free")]
    rows += [(task("v1", "val", options=FOUR), "A"), (task("v2", "val", options=("x", "yy")), "B")]
    result = audited(rows)
    assert [(item.split, item.tasks, item.with_options) for item in result.baselines] == [
        ("train", 8, 7),
        ("val", 2, 2),
    ]
    assert baseline(result, "train", "random").right == 7 / 4
    assert baseline(result, "train", "longest").within == pytest.approx(6 / 7, abs=1e-6)
    assert baseline(result, "train", "longest").whole == 6 / 8
    # Three of the four options share the shortest length.
    assert baseline(result, "train", "shortest").right == pytest.approx(1 / 3, abs=1e-4)
    assert baseline(result, "train", "first").right == 1
    # Train's letter is B: in Val it is right once; so is Val's own commonest letter.
    assert baseline(result, "val", "train_letter").right == 1
    assert baseline(result, "val", "random").within == pytest.approx((1 / 4 + 1 / 2) / 2)


@pytest.mark.spec("DATA-05")
@pytest.mark.parametrize(("longest", "flagged"), [(34, False), (35, False), (36, True)])
def test_a_baseline_is_flagged_only_above_random_plus_ten_points(longest: int, flagged: bool) -> None:
    letters = ["B"] * longest + ["A"] * (100 - longest)
    rows = [(task(f"t{n:03d}", options=FOUR), letter) for n, letter in enumerate(letters)]
    result = audited(rows)
    assert baseline(result, "train", "longest").flagged is flagged
    assert any("the longest option" in flag.text for flag in result.flags) is flagged


def test_a_shortcut_that_so_few_tasks_show_by_chance_is_a_note() -> None:
    few = audited([(task("a", options=FOUR), "B"), (task("b", options=FOUR), "A")])
    many = audited([(task(f"t{n}", options=FOUR), "B") for n in range(20)])
    assert "shortcut" in codes(few, "note")
    assert "shortcut" not in codes(few)
    assert "shortcut" in codes(many)
    # Chance of all of 20 right at a quarter each.
    assert baseline(many, "train", "longest").chance == pytest.approx(0.25**20, abs=1e-6)
    assert baseline(few, "train", "longest").chance == pytest.approx(1 - 0.75**2, abs=1e-6)


def test_the_best_of_four_letters_is_no_surprise() -> None:
    # Six of twelve at a quarter each: p = 0.054 for a letter named before, not for the best of four.
    rows = [(task(f"t{n:02d}", "val", options=FOUR), "B" if n < 6 else "ACD"[n % 3]) for n in range(12)]
    named = baseline(audited(rows), "val", "longest").chance
    assert named == pytest.approx(0.0544, abs=1e-4)
    assert baseline(audited(rows), "val", "own_letter").chance == pytest.approx(4 * named, abs=1e-5)


@pytest.mark.spec("DATA-05")
def test_val_and_test_without_a_common_subtopic_are_a_warning_T14() -> None:
    apart = [(task(f"v{n}", "val", subtopic="one"), "x") for n in range(6)]
    apart += [(task(f"w{n}", "test", subtopic="two"), "x") for n in range(6)]
    assert "no-common-subtopic" in codes(audited(apart))
    joined = [*apart, (task("v9", "val", subtopic="two"), "x")]
    assert "no-common-subtopic" not in codes(audited(joined))


@pytest.mark.spec("DATA-05")
def test_balance_counts_subtopics_and_says_how_far_splits_are_apart() -> None:
    rows = [(task(f"a{n}", "train", subtopic="x" if n < 8 else "y"), "") for n in range(16)]
    rows += [(task(f"b{n}", "test", subtopic="x" if n < 1 else "y"), "") for n in range(4)]
    result = audited(rows)
    assert [(row.subtopic, row.train, row.test) for row in result.balance.counts] == [
        ("x", 8, 1),
        ("y", 8, 3),
    ]
    (distance,) = result.balance.distances
    assert (distance.families, distance.subtopics) == (0.0, 0.25)
    assert result.balance.stratified
    lopsided = [(task(f"c{n}", "test", subtopic="x"), "") for n in range(8)]
    worse = audited([*rows[:16], *lopsided]).balance
    assert not worse.stratified
    assert worse.largest_deviation == ("f/x has 8 of 16 train tasks, in proportion it would have 10.7")


def test_whole_groups_excuse_a_split_from_exact_proportion() -> None:
    rows = [(task(f"x{n:02d}", "test" if n < 8 else "train", subtopic="x"), "") for n in range(22)]
    whole = [(task(f"y{n}", subtopic="y", group="one protocol"), "") for n in range(6)]
    assert audited([*rows, *whole]).balance.stratified
    loose = [(task(f"y{n}", subtopic="y"), "") for n in range(6)]
    assert not audited([*rows, *loose]).balance.stratified


@pytest.mark.spec("DATA-05")
def test_equal_tasks_are_found_within_and_across_splits_whatever_their_case_and_order() -> None:
    rows = [
        (task("a", "train", "Which is BIG?", ("one", "two")), "A"),
        (task("b", "train", "which is  big", ("Two", "one")), "B"),
        (task("c", "test", "Which is big?", ("one", "two")), "A"),
        (task("d", "test", "Which is big?", ("one", "three")), "A"),
    ]
    result = audited(rows)
    assert [(p.one, p.other, p.pairs, p.tasks) for p in result.duplicates.same] == [
        ("train", "train", 1, 2),
        ("train", "test", 2, 1),
    ]
    assert result.duplicates.same[1].examples == (("a", "c"),)
    assert (result.duplicates.questions, result.duplicates.option_sets) == (1, 1)
    assert "duplicates" in codes(result)


def test_answers_out_of_order_are_refused_and_missing_ones_are_not() -> None:
    tasks = [task("a", options=FOUR), task("b", options=FOUR)]
    with pytest.raises(ReleaseError, match="'a' is not in the order"):
        audit(tasks, [("b", "B"), ("a", "A")])
    result = audit(tasks, [("b", "B")])
    assert (result.baselines[0].with_options, result.baselines[0].unanswered) == (2, 1)


def test_a_release_without_tasks_is_one_clear_error() -> None:
    with pytest.raises(ReleaseError, match="without tasks"):
        audit([], [])


def test_a_split_whose_right_letters_are_all_unknown_has_no_baseline() -> None:
    assert audit([task("a", options=FOUR)], []).baselines[0].baselines == ()


@pytest.mark.spec("DATA-05", "EVID-02")
def test_the_audit_holds_no_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    lake = tmp_path_factory.mktemp("lake")
    (lake / "t.tsv").write_text("GENE1\tsecretword\n")
    rows = [(task(f"t{n}", question=f"What of GENE{n}?"), "secretword") for n in range(5)]
    result = audited(rows, lake)
    assert result.answerability is not None
    assert result.answerability.subtopics[0].determined == 1
    assert "secretword" not in result.model_dump_json()
    assert "secretword" not in repr(result)


@pytest.mark.spec("DATA-05")
def test_the_audit_of_a_release_is_the_same_each_time(tmp_path_factory: pytest.TempPathFactory) -> None:
    release = tiny_release(tmp_path_factory.mktemp("r"))
    first, second = (audit_folder(release.root, release.header).model_dump_json() for _ in range(2))
    assert first == second
    assert Audit.model_validate_json(first).tasks == len(release.tasks)


def frozen(root: Path, name: str) -> Path:
    draft = Draft.create(root / f"draft-{name}")
    rows = [task(f"t{n}", "val" if n % 2 else "train", options=FOUR, subtopic=f"s{n % 2}") for n in range(20)]
    rows.append(task("u", "test", "What?", subtopic="s1"))
    draft.fill(rows, {row.id: {"answer": "B" if row.options else "free"} for row in rows})
    families = {"f": ("s0", "s1")}
    freeze_draft(draft, root / name, Declared(name="same", licence="CC0-1.0", families=families))
    return root / name


@pytest.mark.spec("DATA-05")
def test_freezing_makes_the_audit_a_part_of_the_release(tmp_path: Path) -> None:
    root = frozen(tmp_path, "one")
    release = Release.load(root)
    assert AUDIT_FILE in release.header.payload
    stored = audit_of(root)
    assert (stored.tasks, "shortcut" in codes(stored)) == (21, True)
    assert stored == audit_folder(root, release.header)
    # Equal input, equal bytes, the audit's included.
    assert Release.load(frozen(tmp_path, "two")).digest == release.digest
    path = root / AUDIT_FILE
    path.write_text(path.read_text().replace('"tasks": 21', '"tasks": 22'))
    with pytest.raises(ReleaseError, match=r"private/audit\.json was changed"):
        Release.load(root)


def test_a_wrong_reference_ends_freezing_with_an_audit_as_without(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path / "draft")
    draft.fill([task("a", options=FOUR)], {"a": {"answer": "not a letter"}})
    declared = Declared(name="bad", licence="CC0-1.0", families={"f": ("s",)})
    with pytest.raises(ReleaseError, match="reference of task 'a'"):
        freeze_draft(draft, tmp_path / "bad", declared)
    assert not (tmp_path / "bad").exists()


def test_an_audit_of_an_older_version_is_made_anew_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    root = frozen(tmp_path, "one")
    path = root / AUDIT_FILE
    good = path.read_text()
    path.write_text(good.replace('"version": 1', '"version": 0').replace('"tasks": 21', '"tasks": 999'))
    assert audit_of(root).tasks == 21
    path.write_text("{")
    with pytest.raises(ReleaseError, match=r"audit\.json: "):
        audit_of(root)


@pytest.mark.spec("DATA-05")
def test_the_bundled_release_has_no_warning() -> None:
    release = find("open-genomics")
    result = audit_of(release.root)
    assert result.tasks == len(release.tasks) == 360
    assert [flag.text for flag in result.warnings] == []
    assert result.overlap.groups == ()
    assert result.duplicates.same == ()
    splits: tuple[Split, ...] = ("train", "val", "test")
    assert [item.tasks for item in result.baselines] == [len(release.split(split)) for split in splits]
