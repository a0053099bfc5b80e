"""Digests and canonical JSON: the identity of everything that is stored or compared.

A digest is `sha256:` followed by 64 lower-case hex digits. Canonical JSON is UTF-8 with sorted keys, no
insignificant space and no NaN or infinity, so equal values have equal bytes on every machine.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import orjson

DIGEST_PATTERN: Final = re.compile(r"^sha256:[0-9a-f]{64}$")
_CHUNK: Final = 1 << 20
_PLAIN: Final = frozenset({str, int, bool, type(None)})


def digest_bytes(data: bytes) -> str:
    """Digest of raw bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_chunks(chunks: Iterable[bytes]) -> str:
    """Digest of a byte stream, without holding it in memory."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(chunk)
    return "sha256:" + state.hexdigest()


def digest_file(path: Path) -> str:
    """Digest of a file's content. OSError passes through."""
    with path.open("rb") as handle:
        return digest_chunks(iter(lambda: handle.read(_CHUNK), b""))


def is_digest(value: str) -> bool:
    return DIGEST_PATTERN.match(value) is not None


def short(digest: str, length: int = 8) -> str:
    """The first hex digits of a digest, for names that people read."""
    return digest.removeprefix("sha256:")[:length]


def _refuse_nonfinite(value: Any, path: str) -> None:
    # orjson writes NaN and infinity as null, which would make two different values equal.
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"canonical JSON refuses {value} at {path or '$'}")
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            if not isinstance(key, str):
                raise ValueError(f"canonical JSON refuses the non-text key {key!r} at {path or '$'}")
            _refuse_nonfinite(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[Any]", value)):
            _refuse_nonfinite(item, f"{path}[{index}]")


def _is_plain(value: Any) -> bool:
    # Most values are plain dictionaries and lists of texts: the walk that names paths took nine tenths of the
    # time of canonical JSON, so it runs only for what this quick one does not know.
    kind = cast("type[Any]", type(value))
    if kind is dict:
        return all(
            type(key) is str and (type(item) is str or _is_plain(item))
            for key, item in cast("dict[Any, Any]", value).items()
        )
    if kind is list or kind is tuple:
        items = cast("list[Any]", value)
        # Token ids come in long lists; one set of their types is quicker than a call for each.
        return _PLAIN.issuperset(map(type, items)) or all(
            type(item) is str or _is_plain(item) for item in items
        )
    return kind in _PLAIN or (kind is float and math.isfinite(value))


def canonical_json(value: Any) -> bytes:
    """Canonical JSON bytes of plain values (mappings with text keys, sequences, text, numbers, None).

    Raises ValueError for NaN, infinity or a non-text key, TypeError for anything JSON has no form for.
    """
    if not _is_plain(value):
        _refuse_nonfinite(value, "")
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def digest_json(value: Any) -> str:
    """Digest of a value's canonical JSON."""
    return digest_bytes(canonical_json(value))
