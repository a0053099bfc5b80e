"""vLLM as a server of the run's own: started on a folder, waited for, understood when it fails (HOST-10).

It runs under an attendant (`server_child`), so that its workers end with it, however it or the run ends. Must
not know who asks it, or when it is replaced.
"""

import re
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

import httpx

from broker.errors import ModelUnavailable, ServiceRefused
from broker.server_process import ServerProcess, attended
from broker.vllm_settings import VllmSettings

_STOP_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.25
_PORT_TRIES: Final = 3
_TAIL: Final = 5
_ERROR: Final = re.compile(r"\b[A-Z]\w*(?:Error|Exception): \S|^\S*: error: ")
_CONSEQUENCE: Final = re.compile(r"WARNING|EngineDeadError|Engine core initialization failed|stack trace")
_CAUSES: Final[tuple[tuple[str, str, bool], ...]] = (
    (r"(?i)address already in use", "", False),
    (
        r"No module named '?vllm|ModuleNotFoundError: .*vllm",
        "its installation is broken or missing: pip install vllm, or model=endpoint",
        True,
    ),
    (
        r"(?i)less than desired gpu memory utilization",
        "somebody else holds memory of the device: end that (nvidia-smi names it), choose other "
        "model.vllm.devices, or lower model.vllm.gpu_memory_utilization",
        False,
    ),
    (
        r"No available memory for the cache|larger than the available KV cache",
        "the cache does not fit: raise model.vllm.gpu_memory_utilization, lower budgets.context_tokens, or "
        "give more devices",
        True,
    ),
    (
        r"(?i)out of memory",
        "the device has too little memory: lower model.vllm.gpu_memory_utilization or model.max_batch, or "
        "give more model.vllm.devices",
        False,
    ),
    (
        r"than the derived max_model_len",
        "the model's context is shorter than budgets.context_tokens: lower that",
        True,
    ),
    (
        r"(?i)architectures? .* (?:is|are) not supported|does not recognize this architecture",
        "this vLLM knows no such architecture: another version may, or use model.inference=embedded",
        True,
    ),
    (
        r"(?i)divisible by tensor parallel|larger than the number of available gpus|world size .* gpus",
        "set model.vllm.devices and model.vllm.tensor_parallel to what the model and the machine have",
        True,
    ),
    (
        r"(?i)failed to infer device type|no cuda gpus are available|no nvidia driver",
        "it finds no GPU: check nvidia-smi and model.vllm.devices, or use model.inference=embedded",
        True,
    ),
    (
        r"(?i)bfloat16 is only supported",
        "this GPU has no bfloat16: set model.vllm.dtype=float16",
        True,
    ),
    (
        r"unrecognized arguments|invalid choice|expected one argument",
        "it does not know an argument: correct model.vllm.arguments, or take another vLLM version",
        True,
    ),
)
"""What stands in the log, the fix, and whether another try would fail again; the first that is found."""


class VllmProcess(ServerProcess):
    """One vLLM server. `with VllmProcess(folder, VllmSettings(), ...) as server: server.base_url`."""

    defaults: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        model_dir: Path,
        settings: VllmSettings,
        *,
        context_tokens: int,
        sequences: int,
        seed: int = 0,
        log: Path | None = None,
    ) -> None:
        """`sequences`: generated at once; `log`: kept, and named in errors."""
        super().__init__(
            [],
            what="vLLM",
            start_seconds=settings.start_seconds,
            environment=settings.variables(),
            stop_seconds=_STOP_SECONDS,
            log=log,
        )
        self._model_dir = model_dir.absolute()
        self._settings = settings
        self._context_tokens, self._sequences, self._seed = context_tokens, sequences, seed
        self._offered = 0
        # Nobody else has this name: an answer under it is this server's.
        self._name = f"rinr-{secrets.token_hex(4)}"

    @property
    def model_name(self) -> str:
        return self._name

    def start(self) -> Self:
        """Return when it serves the folder. Raises `ModelUnavailable` naming the cause and the fix."""
        self._settings.check_installed()
        for last in (False,) * (_PORT_TRIES - 1) + (True,):
            try:
                return super().start()
            except _PortTaken:
                # Between the choice of a port and its use another process may take it.
                if last:
                    raise
        raise AssertionError("the last try returns or raises")

    def _words(self) -> list[str]:
        self._offered = _free_port()
        command = self._settings.words(
            self._model_dir,
            name=self._name,
            port=self._offered,
            context_tokens=self._context_tokens,
            sequences=self._sequences,
            seed=self._seed,
        )
        return attended(command, _STOP_SECONDS)

    def _await_port(self) -> int:
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while not self._healthy(client):
                self._check_starting()
                time.sleep(_POLL_SECONDS)
        # Health alone could be another server's, which has the port and answers there.
        self._check_starting()
        return self._offered

    def _healthy(self, client: httpx.Client) -> bool:
        root = f"http://127.0.0.1:{self._offered}"
        try:
            if client.get(f"{root}/health").status_code != 200:
                return False
            return any(entry["id"] == self._name for entry in client.get(f"{root}/v1/models").json()["data"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return False

    def _ended(self, code: int) -> ModelUnavailable:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        place = f"; its log: {self._kept_log}" if self._kept_log is not None else ""
        for pattern, fix, lasting in _CAUSES:
            if (found := re.search(pattern, text)) is None:
                continue
            if not fix:
                return _PortTaken(f"vLLM found port {self._offered} in use: try again{place}")
            kind = ServiceRefused if lasting else ModelUnavailable
            return kind(f"vLLM did not start: {fix} ({_line(text, found.start())}){place}")
        return ModelUnavailable(f"vLLM ended with status {code} at start: {_telling(text)}{place}")


class _PortTaken(ModelUnavailable):
    """Another process took the port that was free a moment ago."""


def _telling(text: str) -> str:
    """The first error in a log, for what follows it are its consequences; without one the log's end."""
    lines = text.strip().splitlines()
    for line in lines:
        if _ERROR.search(line) and not _CONSEQUENCE.search(line):
            return _line(line, 0)
    return " / ".join(line.strip() for line in lines[-_TAIL:]) or "it logged nothing"


def _line(text: str, place: int) -> str:
    """The log's line there, without what the logger put before it."""
    end = text.find("\n", place)
    line = text[text.rfind("\n", 0, place) + 1 : None if end < 0 else end]
    return re.sub(r"^(?:\([^)]*\)\s*)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\]\s*)?", "", line).strip()[:300]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
