"""The program that a run begins with: H0, or in `mode=model` the fixed one that the configuration names.

Must not know what is done with it.
"""

import ast
from pathlib import Path
from typing import Final

from broker.harness import Harness
from catalog.database import Catalog
from catalog.digest import is_digest
from catalog.errors import StoreError
from catalog.store import Store
from harness_lab.check import check_program
from harness_lab.seed import seed_harness
from tasks.config import RunConfig

_RUN: Final = "run:"


class UnknownHarness(Exception):
    """`harness=` names nothing that can be run; the text says what may stand there."""


def first_harness(config: RunConfig, store: Store, catalog: Catalog) -> Harness:
    """The configured program. Raises `UnknownHarness`.

    A file, a digest of the store, or `run:ID`: the program that another run in the same storage ended with.
    """
    name = config.harness
    if name is None:
        return seed_harness("skills" if config.auxiliary.improver == "skills" else "h0")
    if name.startswith(_RUN):
        name = _last_selected(catalog, name.removeprefix(_RUN))
    code = _stored(store, name) if is_digest(name) else _read(Path(name).expanduser())
    try:
        ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise UnknownHarness(f"harness={config.harness} is no Python program: {error}") from error
    if found := check_program(code).errors:
        raise UnknownHarness(f"harness={config.harness}: {found[0]}")
    return Harness(code=code)


def _last_selected(catalog: Catalog, run_id: str) -> str:
    if catalog.run(run_id) is None:
        raise UnknownHarness(f"harness=run:{run_id}: no such run in this storage (storage.root)")
    decisions = catalog.decisions(run_id)
    if not decisions:
        raise UnknownHarness(f"harness=run:{run_id}: that run selected no program; name a file or a digest")
    return str(decisions[-1].decision["selected"])


def _stored(store: Store, digest: str) -> str:
    try:
        return store.get_blob(digest).decode()
    except (StoreError, UnicodeDecodeError) as error:
        raise UnknownHarness(
            f"harness={digest} is no program of this storage: name a file, a program's whole digest, or "
            "run:ID"
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownHarness(
            f"harness={path} cannot be read ({error}): name a file, a program's whole digest, or run:ID"
        ) from error
