"""A frozen release of tasks, loaded and checked: its public half and the digest of everything (DATA-02).

Must not know references: loading a release never reads them. The folder is described in `verifier/layout.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from catalog.digest import digest_json
from verifier.answers import GRADING_VERSION
from verifier.inventory import INVENTORY_FILE, Inventory, read_inventory
from verifier.layout import (
    HEADER,
    REFERENCES,
    Header,
    ReleaseError,
    check_payload,
    describe,
    read_header,
    read_tasks,
)
from verifier.task import Split, Task

__all__ = ["BUNDLED", "Release", "ReleaseError", "find", "locate"]

BUNDLED: Final = Path(__file__).parent / "bundled"


@dataclass(frozen=True, eq=False)
class Release:
    """The public half of a release. Compare releases by their digest."""

    root: Path
    header: Header = field(repr=False)
    tasks: tuple[Task, ...] = field(repr=False)
    """Sorted by id."""

    @classmethod
    def load(cls, root: Path, *, verify: bool = True) -> Self:
        """Read a release folder and recompute every digest (`verify=False` skips the content of the files).

        Raises ReleaseError, one line naming the entry and the file, for anything missing, extra or changed.
        """
        header = read_header(root)
        if verify:
            check_payload(root, header)
        return cls(root=root, header=header, tasks=read_tasks(root, header))

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def digest(self) -> str:
        """The one digest over everything, the private half included."""
        return self.header.digest

    @property
    def licence(self) -> str:
        return self.header.licence

    @property
    def no_training(self) -> bool:
        return self.header.no_training

    @property
    def lake(self) -> Path | None:
        """The folder to mount read-only at /lake, or None."""
        return self.root / "lake" if any(name.startswith("lake/") for name in self.header.payload) else None

    @property
    def references_path(self) -> Path:
        """For the grader alone."""
        return self.root / REFERENCES

    def split(self, name: Split) -> tuple[Task, ...]:
        """Tasks of one split, sorted by id."""
        return tuple(task for task in self.tasks if task.split == name)

    def task(self, task_id: str) -> Task:
        """KeyError for an unknown id."""
        return self._by_id[task_id]

    def assets(self, task_id: str) -> Path | None:
        """The folder to mount at /assets for a task with files, else None."""
        return self.root / "public" / "assets" / task_id if self.task(task_id).files else None

    def private_files(self, task_id: str) -> Path:
        """The folder that the check sandbox alone mounts for a task with a script."""
        return self.root / "private" / "files" / task_id

    @cached_property
    def checkers(self) -> frozenset[str]:
        """Who decides criteria outside the grader, over all tasks: a subset of {"judge", "script"}."""
        return frozenset(checker for task in self.tasks for checker in task.checked_by)

    def inventory(self, libraries: Sequence[str] = ()) -> Inventory:
        """The public inventory of the lake; `libraries` are those of the execution environment."""
        return self._inventory.model_copy(update={"libraries": tuple(libraries)})

    def verifier_identity(self) -> str:
        """Digest of the grading code's version and of the reference file (which is not read)."""
        return digest_json({"grading": GRADING_VERSION, "references": self.header.payload[REFERENCES].digest})

    @cached_property
    def _by_id(self) -> dict[str, Task]:
        return {task.id: task for task in self.tasks}

    @cached_property
    def _inventory(self) -> Inventory:
        if INVENTORY_FILE in self.header.payload:
            try:
                return Inventory.model_validate_json((self.root / INVENTORY_FILE).read_bytes())
            except (OSError, ValidationError) as error:
                reason = describe(error) if isinstance(error, ValidationError) else error.strerror
                raise ReleaseError(f"{self.root}: {INVENTORY_FILE}: {reason}") from None
        return read_inventory(self.lake, descriptions=self.header.lake_descriptions)


def locate(name_or_path: str) -> Path:
    """The folder of the bundled release of that name, else the folder itself. ReleaseError if neither."""
    bundled = sorted(path.parent.name for path in BUNDLED.glob(f"*/{HEADER}"))
    if name_or_path in bundled:
        return BUNDLED / name_or_path
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    known = ", ".join(bundled) or "none"
    raise ReleaseError(f"no release {name_or_path!r}: name a folder with {HEADER}, or one of: {known}")


def find(name_or_path: str) -> Release:
    """The bundled release of that name, else the release in that folder."""
    return Release.load(locate(name_or_path))
