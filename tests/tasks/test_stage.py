"""A stage is a function of its key: the same key is not run twice, any other input is another key."""

from dataclasses import replace
from pathlib import Path

import pytest

from catalog.database import Catalog
from catalog.digest import digest_bytes
from catalog.store import Ref, Store
from tasks.stage import StageKey, run_stage

KEY = StageKey("evaluate", 1, {"model": digest_bytes(b"m0")}, {"run": "r", "cycle": 1, "seed": 3})


class Counted:
    """A body that counts how often it ran."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs = 0

    async def __call__(self) -> Ref:
        self.runs += 1
        return self.store.put_record("thing", 1, {"n": 1})


@pytest.fixture
def room(tmp_path: Path) -> tuple[Catalog, Store, Counted]:
    catalog, store = Catalog(tmp_path / "catalog.db"), Store(tmp_path / "store")
    catalog.start_run("r", "ci", {}, {})
    return catalog, store, Counted(store)


async def test_a_known_key_whose_output_exists_is_not_run_again(room: tuple[Catalog, Store, Counted]) -> None:
    catalog, store, body = room
    first = await run_stage(catalog, store, "r", KEY, body)
    second = await run_stage(catalog, store, "r", KEY, body)
    assert (first.cached, second.cached, body.runs) == (False, True, 1)
    assert first.output == second.output


async def test_a_cached_output_that_vanished_is_made_again(
    room: tuple[Catalog, Store, Counted], tmp_path: Path
) -> None:
    catalog, store, body = room
    first = await run_stage(catalog, store, "r", KEY, body)
    for path in (tmp_path / "store").rglob(f"*{first.output.digest[-20:]}*"):
        path.unlink()
    assert not (await run_stage(catalog, store, "r", KEY, body)).cached
    assert body.runs == 2


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, version=2),
        replace(KEY, name="collect"),
        replace(KEY, inputs={"model": digest_bytes(b"m1")}),
        replace(KEY, inputs={"harness": digest_bytes(b"m0")}),
        replace(KEY, parameters=dict(KEY.parameters) | {"cycle": 2}),
        replace(KEY, parameters=dict(KEY.parameters) | {"seed": "3"}),
    ],
)
def test_any_difference_is_another_key(other: StageKey) -> None:
    assert other.digest != KEY.digest


def test_a_key_that_cannot_be_computed_is_an_error() -> None:
    with pytest.raises(ValueError, match="no digest"):
        _ = replace(KEY, inputs={"model": "m0"}).digest
    with pytest.raises(ValueError, match="nan"):
        _ = replace(KEY, parameters={"rate": float("nan")}).digest
