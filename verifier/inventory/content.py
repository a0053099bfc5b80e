"""The beginning of a file, read once and bounded, gunzipped if it is gzipped.

What the describers of single kinds work on. Must not know any kind.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HEAD: Final = 16 << 20
"""Bytes of a file that are read."""


@dataclass(frozen=True)
class Content:
    """The first bytes of one file."""

    path: Path
    size: int
    """Bytes on disk."""
    head: bytes
    complete: bool
    """The head is the whole content."""
    packed: bool
    """It is gzipped; the head is unpacked."""
    suffix: str
    """Lower case, that of the unpacked file: `.csv` of `x.CSV.gz`."""
    damage: str = ""
    """Why reading stopped early."""

    @property
    def is_text(self) -> bool:
        return b"\0" not in self.head[:8192]

    def whole_lines(self) -> bytes:
        """The head without a last line that is cut off."""
        return self.head if self.complete else self.head[: self.head.rfind(b"\n") + 1] or self.head

    def about(self, counted: int) -> tuple[int, str]:
        """A count over the head as one of the file, and in words that it is estimated."""
        if self.complete:
            return counted, ""
        if self.packed:
            return counted, f"at least {counted}, read to the first {HEAD >> 20} MiB"
        estimate = round(counted * self.size / max(1, len(self.whole_lines())))
        return estimate, f"about {estimate}, estimated from the first {HEAD >> 20} MiB"


def read_content(path: Path) -> Content:
    """Read the head. OSError passes through; a damaged archive gives what could be unpacked."""
    size = path.stat().st_size
    suffixes = [suffix.lower() for suffix in path.suffixes]
    with path.open("rb") as handle:
        packed = handle.read(2) == b"\x1f\x8b" and suffixes[-1:] == [".gz"]
        handle.seek(0)
        if not packed:
            head = handle.read(HEAD + 1)
            return Content(path, size, head[:HEAD], len(head) <= HEAD, False, (suffixes or [""])[-1])
        suffix = suffixes[-2] if len(suffixes) > 1 else ""
        parts: list[bytes] = []
        room, damage = HEAD + 1, ""
        try:
            with gzip.GzipFile(fileobj=handle) as unpacked:
                while room > 0 and (part := unpacked.read(min(room, 1 << 16))):
                    parts.append(part)
                    room -= len(part)
        except (OSError, EOFError, zlib.error) as error:
            damage = f"damaged gzip file: {error}"
        head = b"".join(parts)
        return Content(path, size, head[:HEAD], len(head) <= HEAD and not damage, True, suffix, damage)
