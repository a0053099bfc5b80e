"""A list of task ids by split, as a JSON file. Knows no draft.

Two layouts: `{"train": [ids], "val": [ids], "test": [ids]}`, and `{"splits": {"train": ..., ...}, ...}` with
free fields beside `splits`. A split is a list, or lists by family; an id is a text or an object with `id`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from catalog.digest import digest_file
from verifier.layout import SPLITS, ReleaseError
from verifier.task import Split


@dataclass(frozen=True)
class IdList:
    """Split by task id."""

    name: str
    """The file's base name."""
    digest: str
    splits: Mapping[str, Split]


def read_ids(path: Path) -> IdList:
    """Read an id list. Raises ReleaseError naming the file and the entry."""
    try:
        value: Any = orjson.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise ReleaseError(f"{path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise ReleaseError(f"{path}: no JSON ({error.msg}, line {error.lineno})") from None
    by_split: Any = cast("dict[str, Any]", value).get("splits", value) if isinstance(value, dict) else value
    if not isinstance(by_split, dict):
        raise ReleaseError(f'{path}: an id list looks like {{"train": [...], "val": [...], "test": [...]}}')
    stated = cast("dict[str, Any]", by_split)
    unknown = sorted(set(stated) - set(SPLITS))
    if unknown:
        raise ReleaseError(f"{path}: {unknown[0]!r} is no split; splits are {', '.join(SPLITS)}")
    splits: dict[str, Split] = {}
    for split in SPLITS:
        for task_id in _ids(stated.get(split, []), f"{path}: {split}"):
            if task_id in splits:
                raise ReleaseError(f"{path}: {task_id!r} appears twice, in {splits[task_id]} and in {split}")
            splits[task_id] = split
    if not splits:
        raise ReleaseError(f"{path}: it names no task")
    return IdList(path.name, digest_file(path), splits)


def _ids(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for family, entries in cast("dict[str, Any]", value).items():
            yield from _ids(entries, f"{where}.{family}")
        return
    if not isinstance(value, list):
        raise ReleaseError(f"{where}: a list of ids belongs here")
    for number, entry in enumerate(cast("list[Any]", value), 1):
        task_id = cast("dict[str, Any]", entry).get("id") if isinstance(entry, dict) else entry
        if not isinstance(task_id, str) or not task_id:
            raise ReleaseError(f"{where}, entry {number}: an id is a text that is not empty")
        yield task_id
