"""What became of a run's inference services: one JSON line an event, and a log file for each server.

`started` with seconds and GPU memory, `lost` with the reason, `released` with the memory before and after.
Must not know what a service is.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

EVENTS: Final = "services.jsonl"


class ServiceLog:
    """A folder of one run: `services.jsonl` and `vllm-0001.log`, ..."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, event: str, **facts: Any) -> None:
        """Append one event, in UTC."""
        self._folder.mkdir(parents=True, exist_ok=True)
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        with (self._folder / EVENTS).open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")

    def server_log(self, kind: str) -> Path:
        """A new file for the next server's own log; earlier ones stay."""
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.stem.rpartition("-")[2]) for path in self._folder.glob(f"{kind}-[0-9]*.log")]
        return self._folder / f"{kind}-{max(numbers, default=0) + 1:04d}.log"
