"""The one inference service of a run: a user's endpoint, the embedded engine, vLLM, or a server command.

Started on a model folder, health-checked, and proven gone before training, its GPU memory included (HOST-10,
HAND-04). A chat endpoint's folder holds only the tokenizer that counts for it, and which model is meant
(HOST-11). Must not know what is asked of the model.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from broker.chat_model import ChatClient, ChatModel, Dialect, LengthParameter
from broker.client import CompletionsClient
from broker.endpoint import Endpoint, EndpointSettings
from broker.engine.process import EngineProcess
from broker.errors import ModelUnavailable
from broker.gpu_memory import FREE_SECONDS, MemoryWatch, plain
from broker.limiter import Limiter
from broker.model import Sampling
from broker.sandbox.labels import temporary_prefix
from broker.server_process import ServerProcess, attended
from broker.service_log import ServiceLog
from broker.template import ChatTemplate
from broker.vllm_server import VllmProcess
from broker.vllm_settings import VllmSettings

_HEALTH_SECONDS: Final = 30.0
_DYING_SECONDS: Final = 5.0
"""For a server whose first request has failed, to end: its workers end first."""
_ONE_TOKEN: Final = Sampling(temperature=0.0, seed=0, max_tokens=1)
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class InferenceSpec(BaseModel):
    """How the task model is served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["embedded", "endpoint", "command", "vllm", "chat"]
    device: str = "auto"
    threads: int = 0
    """Torch threads of the embedded engine; 0 leaves the choice to torch."""
    max_batch: int = 32
    """Sequences that the embedded engine or vLLM generates at once; the rest waits in the host's queue."""
    context_tokens: int = 2048
    vllm: VllmSettings = VllmSettings()
    seed: int = 0
    """vLLM's own; every request has another one of its own."""
    base_url: str | None = None
    served_name: str | None = None
    command: tuple[str, ...] = ()
    """For `command`; a leading `python` is this interpreter."""
    settings: EndpointSettings = EndpointSettings()
    api_key_variable: str = "OPENAI_API_KEY"
    """For `endpoint` and `chat`: names the environment variable, so that no record holds the key."""
    dialect: Dialect = "openai"
    length_parameter: LengthParameter = "max_tokens"


class InferenceService:
    """One service on one model folder. `start` before `client`, `stop` in any case."""

    def __init__(self, spec: InferenceSpec, model_dir: Path, log: ServiceLog | None = None) -> None:
        """`log`: where starts and releases are told, and vLLM's own logs are kept."""
        self._spec = spec
        self._model_dir = model_dir
        self._told = log
        self._memory: MemoryWatch | None = None
        self._process: ServerProcess | None = None
        self._client: CompletionsClient | ChatModel | None = None

    async def start(self) -> CompletionsClient | ChatModel:
        """A client whose server answers and serves the model. Raises ModelUnavailable naming what failed."""
        started = time.monotonic()
        try:
            self._client = await self._open()
            await self._client.identity()
            if self._spec.kind == "vllm" and isinstance(self._client, CompletionsClient):
                # Its health says nothing of the engine behind it.
                await self._client.complete((0,), _ONE_TOKEN)
            await self._tell_started(time.monotonic() - started)
        except BaseException as error:
            # A server that dies of the first request has said more in its log than on the wire, and its
            # connection is gone before it is.
            process = self._process if isinstance(error, ModelUnavailable) else None
            died = await asyncio.to_thread(process.death, _DYING_SECONDS) if process is not None else None
            try:
                await self.stop()
            finally:
                if died is not None:
                    raise died from error
            raise
        return self._client

    @property
    def alive(self) -> bool:
        """False once a process of ours has ended; of somebody else's endpoint nothing is known."""
        return self._client is not None and (self._process is None or self._process.alive)

    async def usable(self) -> bool:
        """False also when a process of ours has left a request unanswered and generates nothing now either.

        A token and not only a list of models: what hangs may be the generation alone.
        """
        if not self.alive or not isinstance(self._client, CompletionsClient):
            return self.alive
        if self._process is None or self._client.endpoint.answering:
            return True
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                await self._client.complete((0,), _ONE_TOKEN)
        except (ModelUnavailable, TimeoutError):
            return False
        return True

    def spending(self) -> str | None:
        """What a chat endpoint was asked and paid so far, in one line."""
        return self._client.client.spending() if isinstance(self._client, ChatModel) else None

    async def stop(self) -> None:
        """Close the client, end the process, and return when it and its GPU memory are gone. Idempotent.

        Raises `ModelUnavailable` naming the processes that stay, or that hold memory of its devices.
        """
        client, self._client = self._client, None
        process, self._process = self._process, None
        try:
            if client is not None:
                await client.close()
        finally:
            if process is not None:
                await self._end(process)

    async def _end(self, process: ServerProcess) -> None:
        began = time.monotonic()
        await asyncio.to_thread(process.stop)
        gone = time.monotonic()
        memory, self._memory = self._memory, None
        free = await asyncio.to_thread(memory.prove_free, process.what, FREE_SECONDS) if memory else ()
        if self._told is not None:
            self._told.write(
                "released",
                kind=self._spec.kind,
                seconds_stop=round(gone - began, 3),
                seconds_memory=round(time.monotonic() - gone, 3),
                before=plain(memory.before if memory else ()),
                after=plain(free),
            )

    async def _tell_started(self, seconds: float) -> None:
        if self._told is None or self._process is None:
            return
        memory = self._memory
        now = await asyncio.to_thread(memory.now) if memory else ()
        self._told.write(
            "started",
            kind=self._spec.kind,
            model=self._model_dir.name,
            pid=self._process.pid,
            seconds=round(seconds, 3),
            before=plain(memory.before if memory else ()),
            now=plain(now),
        )

    async def _open(self) -> CompletionsClient | ChatModel:
        spec = self._spec
        if spec.kind in ("endpoint", "chat"):
            return self._remote(spec)
        process: ServerProcess
        if spec.kind == "embedded":
            process = EngineProcess(
                self._model_dir,
                device=spec.device,
                max_batch=spec.max_batch,
                max_length=spec.context_tokens,
                threads=spec.threads or None,
            )
        elif spec.kind == "vllm":
            process = VllmProcess(
                self._model_dir,
                spec.vllm,
                context_tokens=spec.context_tokens,
                sequences=spec.max_batch,
                seed=spec.seed,
                log=self._told.server_log(spec.kind) if self._told is not None else None,
            )
        else:
            words = [sys.executable if word == "python" else word for word in spec.command]
            # The user's command need not know when its run is gone.
            command = [*attended(words), "--model", str(self._model_dir)]
            process = ServerProcess(command, what="the server command")
        self._process = process
        if spec.device != "cpu" or spec.kind == "vllm":
            self._memory = await asyncio.to_thread(MemoryWatch, spec.vllm.device_names)
        await asyncio.to_thread(process.start)
        # More requests than the engine works on would queue there, on the programs' clocks (case T17).
        sequences = Limiter(spec.max_batch) if spec.kind in ("embedded", "vllm") else None
        return CompletionsClient(process.base_url, process.model_name, spec.settings, sequences=sequences)

    def _remote(self, spec: InferenceSpec) -> CompletionsClient | ChatModel:
        """A client of a server that the user runs or rents."""
        assert spec.base_url is not None
        name = spec.served_name or self._model_dir.name
        key = os.environ.get(spec.api_key_variable)
        hint = f"the environment variable {spec.api_key_variable}"
        if spec.kind == "endpoint":
            return CompletionsClient(spec.base_url, name, spec.settings, api_key=key, key_hint=hint)
        endpoint = Endpoint(spec.base_url, spec.settings, api_key=key, key_hint=hint)
        return ChatModel(
            ChatClient(endpoint, name),
            ChatTemplate.load(self._model_dir, counting=True).count,
            dialect=spec.dialect,
            length_parameter=spec.length_parameter,
        )


@contextmanager
def chat_model_folder(tokenizer: Path, base_url: str, served_name: str) -> Generator[Path]:
    """What stands for a model behind a chat endpoint: the tokenizer that counts, and which model is meant.

    So two such models are two models, although one tokenizer counts for both.
    """
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("chat")) as folder:
        for name in _TOKENIZER_FILES:
            if (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, Path(folder) / name)
        ChatTemplate.load(Path(folder), counting=True)
        meant = {"base_url": base_url.rstrip("/"), "served_name": served_name}
        (Path(folder) / "chat_endpoint.json").write_text(json.dumps(meant, indent=1) + "\n", encoding="utf-8")
        yield Path(folder)
