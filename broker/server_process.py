"""A server of the run's own as a child process: started, health-checked, proven gone (HOST-10, HAND-04).

It runs any command that takes `--port 0 --ready-file FILE` and writes {"port": ...} there when it serves
(`server_child` has that half). The child leads a process group, and gone is gone with all of it. Must not
know requests, nor what is served.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import httpx

from broker.errors import ModelUnavailable
from broker.process_group import end_group
from broker.sandbox.labels import temporary_prefix

_POLL_SECONDS: Final = 0.05
_LOG_LINES: Final = 15
_STOP_SECONDS: Final = 5.0
_MARGIN_SECONDS: Final = 3.0
_MEMORY_SETTINGS: Final = {
    # glibc: take big blocks from the heap and keep them, instead of mapping fresh pages for every
    # intermediate result (measured on the embedded engine: prompts 13 % faster).
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_ARENA_MAX": "1",
}


class ServerProcess:
    """One server child. `with ServerProcess(command) as server: ... server.base_url`."""

    defaults: ClassVar[Mapping[str, str]] = _MEMORY_SETTINGS
    """Variables of the child where the parent has none."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        what: str = "the server",
        start_seconds: float = 180.0,
        health: str = "/health",
        environment: Mapping[str, str] | None = None,
        stop_seconds: float = _STOP_SECONDS,
        log: Path | None = None,
    ) -> None:
        """Nothing starts yet. `start_seconds`: how long it may take until it serves; `health`: a path that
        answers 200 then; `environment`: variables beside the parent's; `stop_seconds`: from SIGTERM until
        it is killed; `log`: a file that is kept, else it goes with the process."""
        self._command = list(command)
        self.what = what
        self._start_seconds = start_seconds
        self._health = health
        self._environment = dict(environment or {})
        self._stop_seconds = stop_seconds
        self._kept_log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port = 0
        self._deadline = 0.0

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        if not self._port:
            raise ModelUnavailable(f"{self.what} is not started")
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, for a completions client."""
        return f"{self.url}/v1"

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
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start the child and return at once."""
        if self._child is not None:
            return
        self._folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("server"))
        root = Path(__file__).resolve().parents[1]
        search = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        try:
            with self._log.open("wb") as log:
                self._child = subprocess.Popen(
                    self._words(),
                    env={**self.defaults, **os.environ, **self._environment, "PYTHONPATH": search},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C is the parent's to hear: it still needs its servers to end in good order.
                    process_group=0,
                )
        except OSError as error:
            self.stop()
            raise ModelUnavailable(f"{self.what} could not be started: {error}") from error
        self._deadline = time.monotonic() + self._start_seconds

    def wait_until_ready(self) -> None:
        """Return when the launched child serves; it is ended if it does not. Raises `ModelUnavailable`."""
        if self._port:
            return
        try:
            self._port = self._await_port()
            self._request("GET", self._health, 10.0)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the child and its whole group; return when they are gone. Idempotent.

        Raises `ModelUnavailable` naming processes that cannot be ended.
        """
        child, self._child, self._port = self._child, None, 0
        try:
            if child is not None:
                child.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=self._stop_seconds + _MARGIN_SECONDS)
                if child.poll() is None:
                    child.kill()
                    child.wait(timeout=30)
                end_group(child.pid, self.what)
        finally:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def death(self, seconds: float = 0.0) -> ModelUnavailable | None:
        """Why a child that was started has ended by itself; None if it lives `seconds` longer."""
        if self._child is None:
            return None
        try:
            return self._ended(self._child.wait(timeout=seconds))
        except subprocess.TimeoutExpired:
            return None

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
        if self._kept_log is not None:
            return self._kept_log
        assert self._folder is not None
        return Path(self._folder.name) / "server.log"

    @property
    def _ready(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "ready.json"

    def _first_model(self) -> dict[str, Any]:
        return self._request("GET", "/v1/models", 10.0)["data"][0]

    def _words(self) -> list[str]:
        """The command line, complete."""
        return [*self._command, "--port", "0", "--ready-file", str(self._ready)]

    def _await_port(self) -> int:
        """The port, once the child serves. Raises `ModelUnavailable`."""
        while not self._ready.exists():
            self._check_starting()
            time.sleep(_POLL_SECONDS)
        return int(json.loads(self._ready.read_text(encoding="utf-8"))["port"])

    def _check_starting(self) -> None:
        """Raise `ModelUnavailable` when the child has ended or its time is up."""
        # Once: another thread may stop the server meanwhile.
        child = self._child
        if child is None:
            raise ModelUnavailable(f"{self.what} is not started")
        if (code := child.poll()) is not None:
            raise self._ended(code)
        if time.monotonic() > self._deadline:
            raise ModelUnavailable(
                f"{self.what} did not serve within {self._start_seconds:.0f} s: {self._log_tail()}"
            )

    def _ended(self, code: int) -> ModelUnavailable:
        """What is said of a child that has ended before it served."""
        return ModelUnavailable(f"{self.what} ended with status {code} at start: {self._log_tail()}")

    def _log_tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(lines[-_LOG_LINES:]) or "it logged nothing"

    def _request(self, method: str, path: str, seconds: float, **options: Any) -> dict[str, Any]:
        url = self.url + path
        try:
            with httpx.Client(trust_env=False, timeout=seconds) as client:
                response = client.request(method, url, **options)
        except httpx.HTTPError as error:
            raise ModelUnavailable(f"{self.what} at {url} does not answer: {error!r}") from error
        if response.status_code != 200:
            raise ModelUnavailable(_error_message(response))
        # vLLM is healthy without a word.
        return response.json() if response.content else {}


def attended(command: Sequence[str], stop_seconds: float = _STOP_SECONDS) -> list[str]:
    """The command line under which a command that knows nothing of this process ends with it."""
    return [sys.executable, "-m", "broker.server_child", str(os.getpid()), str(stop_seconds), *command]


def _error_message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{response.request.url} answered {response.status_code}: {response.text[:200]}"
