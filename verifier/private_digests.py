"""Digests of the private files of a release, taken by a process of their own (EVID-02).

Whoever loads a release must know that its references are unchanged, and must not have read them: what was
read may be left in memory. Also a script, of the standard library alone: `python -I -S private_digests.py`
takes paths on standard input, each ended by a NUL, and prints a SHA-256 a line.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def digests_aside(paths: Sequence[Path]) -> list[str]:
    """`sha256:...` of each file, in order. Raises OSError when one cannot be read."""
    if not paths:
        return []
    asked = b"".join(os.fsencode(path) + b"\0" for path in paths)
    done = subprocess.run(
        [sys.executable, "-I", "-S", __file__], input=asked, capture_output=True, check=False
    )
    lines = done.stdout.decode("ascii", "replace").splitlines()
    if done.returncode != 0 or len(lines) != len(paths):
        unread = paths[min(len(lines), len(paths) - 1)]
        raise OSError(f"cannot be read: {unread}")
    return [f"sha256:{line}" for line in lines]


def _main() -> None:
    for path in sys.stdin.buffer.read().split(b"\0")[:-1]:
        with open(path, "rb", buffering=0) as handle:  # noqa: PTH123 - a path in bytes
            print(hashlib.file_digest(handle, "sha256").hexdigest(), flush=True)


if __name__ == "__main__":
    _main()
