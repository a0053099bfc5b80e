"""Start and stop the embedded engine as a child process (HOST-10, HAND-04).

Owns the child: waits until it serves, says why it died, proves that it is gone. Imports no torch. Must not
know requests.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from broker.errors import ModelUnavailable

_POLL_SECONDS: Final = 0.05
_LOG_LINES: Final = 15


class EngineProcess:
    """One engine child. `with EngineProcess(folder) as engine: ... engine.base_url`."""

    def __init__(
        self,
        model_dir: Path,
        *,
        device: str = "auto",
        max_batch: int = 32,
        max_length: int = 2048,
        threads: int | None = None,
        start_seconds: float = 180.0,
    ) -> None:
        """Nothing starts yet. `start_seconds`: how long the model may take to load."""
        self._options = ["--model", str(model_dir.absolute()), "--device", device]
        self._options += ["--max-batch", str(max_batch), "--max-length", str(max_length)]
        self._options += ["--threads", str(threads)] if threads is not None else []
        self._model_dir = model_dir
        self._start_seconds = start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, for a completions client."""
        if not self._port:
            raise ModelUnavailable("the embedded engine is not started")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def model_name(self) -> str:
        return self._model_dir.name

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self) -> Self:
        """Return when the engine serves. Raises `ModelUnavailable` with the end of its log otherwise."""
        if self._child is not None:
            return self
        self._folder = tempfile.TemporaryDirectory(prefix="rinr-engine-")
        ready = Path(self._folder.name) / "ready.json"
        command = [sys.executable, "-m", "broker.engine", *self._options]
        command += ["--port", "0", "--ready-file", str(ready), "--parent", str(os.getpid())]
        root = Path(__file__).resolve().parents[2]
        search = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": search},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_ready(ready)
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
                child.wait(timeout=5)
            if child.poll() is None:
                child.kill()
                child.wait(timeout=30)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def load_weights(self, folder: Path, *, seconds: float = 120.0) -> str:
        """Serve the weights of another export; returns its digest. Raises `ModelUnavailable`."""
        answer = self._request("POST", "/v1/load_weights", seconds, json={"path": str(folder.absolute())})
        return str(answer["digest"])

    def identity(self) -> str:
        """Digest of the served configuration, tokenizer and weights."""
        return str(self._request("GET", "/v1/models", 10.0)["data"][0]["digest"])

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
        return Path(self._folder.name) / "engine.log"

    def _wait_until_ready(self, ready: Path) -> None:
        assert self._child is not None
        deadline = time.monotonic() + self._start_seconds
        while not ready.exists():
            if (code := self._child.poll()) is not None:
                raise ModelUnavailable(
                    f"the embedded engine ended with status {code} at start: {self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ModelUnavailable(
                    f"the embedded engine did not serve {self._model_dir} within {self._start_seconds:.0f} s: "
                    f"{self._log_tail()}"
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
            raise ModelUnavailable(f"the embedded engine at {url} does not answer: {error!r}") from error
        body: dict[str, Any] = response.json()
        if response.status_code != 200:
            raise ModelUnavailable(str(body["error"]["message"]))
        return body
