"""The identity of a process: its id and when it started, for ids are used again. Linux only."""

from pathlib import Path


def process_start_time(pid: int) -> int | None:
    """Clock ticks since boot at its start, or None when no such process lives."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
