"""A server of the run's own as a child process: started, health-checked, proven gone (HOST-10, HAND-04).

`ServerProcess` runs any command that takes `--port 0 --ready-file FILE` and writes {"port": ...} there when
it serves; `EngineProcess` is the embedded engine. Imports no torch. Must not know requests.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from broker.errors import ModelUnavailable

_POLL_SECONDS: Final = 0.05
_LOG_LINES: Final = 15
_STOP_SECONDS: Final = 5.0
_MEMORY_SETTINGS: Final = {
    # glibc: take big blocks from the heap and keep them, instead of mapping fresh pages for every
    # intermediate result (measured on the embedded engine: prompts 13 % faster).
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_ARENA_MAX": "1",
}


class ServerProcess:
    """One server child. `with ServerProcess(command) as server: ... server.base_url`."""

    def __init__(
        self, command: Sequence[str], *, what: str = "the server", start_seconds: float = 180.0
    ) -> None:
        """Nothing starts yet. `start_seconds`: how long it may take until it serves."""
        self._command = list(command)
        self._what = what
        self._start_seconds = start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, for a completions client."""
        if not self._port:
            raise ModelUnavailable(f"{self._what} is not started")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def model_name(self) -> str:
        """The name under which the server offers its model."""
        return str(self._first_model()["id"])

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> Self:
        """Return when it serves. Raises `ModelUnavailable` with the end of its log otherwise."""
        if self._child is not None:
            return self
        self._folder = tempfile.TemporaryDirectory(prefix="rinr-server-")
        ready = Path(self._folder.name) / "ready.json"
        root = Path(__file__).resolve().parents[2]
        search = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        try:
            with self._log.open("wb") as log:
                self._child = subprocess.Popen(
                    [*self._command, "--port", "0", "--ready-file", str(ready)],
                    env={**_MEMORY_SETTINGS, **os.environ, "PYTHONPATH": search},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._wait_until_ready(ready)
        except OSError as error:
            self.stop()
            raise ModelUnavailable(f"{self._what} could not be started: {error}") from error
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the child and return when it is gone. Idempotent."""
        child, self._child, self._port = self._child, None, 0
        if child is not None:
            child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=_STOP_SECONDS)
            if child.poll() is None:
                child.kill()
                child.wait(timeout=30)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def stats(self) -> dict[str, float]:
        return self._request("GET", "/stats", 10.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "server.log"

    def _first_model(self) -> dict[str, Any]:
        return self._request("GET", "/v1/models", 10.0)["data"][0]

    def _wait_until_ready(self, ready: Path) -> None:
        assert self._child is not None
        deadline = time.monotonic() + self._start_seconds
        while not ready.exists():
            if (code := self._child.poll()) is not None:
                raise ModelUnavailable(f"{self._what} ended with status {code} at start: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise ModelUnavailable(
                    f"{self._what} did not serve within {self._start_seconds:.0f} s: {self._log_tail()}"
                )
            time.sleep(_POLL_SECONDS)
        self._port = int(json.loads(ready.read_text(encoding="utf-8"))["port"])
        self._request("GET", "/health", 10.0)

    def _log_tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(lines[-_LOG_LINES:]) or "it logged nothing"

    def _request(self, method: str, path: str, seconds: float, **options: Any) -> dict[str, Any]:
        url = self.base_url.removesuffix("/v1") + path
        try:
            with httpx.Client(trust_env=False, timeout=seconds) as client:
                response = client.request(method, url, **options)
        except httpx.HTTPError as error:
            raise ModelUnavailable(f"{self._what} at {url} does not answer: {error!r}") from error
        body: dict[str, Any] = response.json()
        if response.status_code != 200:
            raise ModelUnavailable(str(body["error"]["message"]))
        return body


class EngineProcess(ServerProcess):
    """The embedded engine on one model folder. `with EngineProcess(folder) as engine: engine.base_url`."""

    def __init__(
        self,
        model_dir: Path,
        *,
        device: str = "auto",
        max_batch: int = 32,
        max_length: int = 2048,
        threads: int | None = None,
        exact: bool = True,
        start_seconds: float = 180.0,
    ) -> None:
        """`max_length`: prompt plus completion, in tokens. `threads`: of torch; None leaves it the choice.

        `exact=False`: see `EmbeddedEngine`.
        """
        command = [sys.executable, "-m", "broker.engine", "--model", str(model_dir.absolute())]
        command += ["--device", device, "--max-batch", str(max_batch), "--max-length", str(max_length)]
        command += ["--threads", str(threads)] if threads is not None else []
        command += ["--parent", str(os.getpid())] + ([] if exact else ["--fast-matmul"])
        super().__init__(command, what="the embedded engine", start_seconds=start_seconds)

    def load_weights(self, folder: Path, *, seconds: float = 120.0) -> str:
        """Serve the weights of another export; returns its digest. Raises `ModelUnavailable`."""
        answer = self._request("POST", "/v1/load_weights", seconds, json={"path": str(folder.absolute())})
        return str(answer["digest"])

    def identity(self) -> str:
        """Digest of the served configuration, tokenizer and weights."""
        return str(self._first_model()["digest"])
