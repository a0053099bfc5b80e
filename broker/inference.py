"""The one inference service of a run: an endpoint of the user's, the embedded engine, or a server command.

Started on a model folder, health-checked, and proven gone before training (HOST-10, HAND-04). Must not know
what is asked of the model.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from broker.client import CompletionsClient
from broker.engine.process import EngineProcess
from broker.limiter import Limiter
from broker.server_process import ServerProcess


class InferenceSpec(BaseModel):
    """How the task model is served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["embedded", "endpoint", "command"]
    device: str = "auto"
    threads: int = 0
    """Torch threads of the embedded engine; 0 leaves the choice to torch."""
    max_batch: int = 32
    """Sequences that the embedded engine generates at once; the rest waits in the host's own queue."""
    context_tokens: int = 2048
    base_url: str | None = None
    served_name: str | None = None
    command: tuple[str, ...] = ()
    """For `command`; a leading `python` is this interpreter."""


class InferenceService:
    """One service on one model folder. `start` before `client`, `stop` in any case."""

    def __init__(self, spec: InferenceSpec, model_dir: Path) -> None:
        self._spec = spec
        self._model_dir = model_dir
        self._process: ServerProcess | None = None
        self._client: CompletionsClient | None = None

    async def start(self) -> CompletionsClient:
        """A client whose server answers and serves the model. Raises ModelUnavailable naming what failed."""
        try:
            self._client = await self._open()
            await self._client.identity()
        except BaseException:
            await self.stop()
            raise
        return self._client

    @property
    def alive(self) -> bool:
        """False once a process of ours has ended; of somebody else's endpoint nothing is known."""
        return self._client is not None and (self._process is None or self._process.alive)

    async def stop(self) -> None:
        """Close the client, end the process and return when it is gone. Idempotent."""
        client, self._client = self._client, None
        process, self._process = self._process, None
        try:
            if client is not None:
                await client.close()
        finally:
            if process is not None:
                await asyncio.to_thread(process.stop)

    async def _open(self) -> CompletionsClient:
        spec = self._spec
        if spec.kind == "endpoint":
            assert spec.base_url is not None
            return CompletionsClient(spec.base_url, spec.served_name or self._model_dir.name)
        if spec.kind == "embedded":
            process: ServerProcess = EngineProcess(
                self._model_dir,
                device=spec.device,
                max_batch=spec.max_batch,
                max_length=spec.context_tokens,
                threads=spec.threads or None,
            )
        else:
            words = [sys.executable if word == "python" else word for word in spec.command]
            # The user's command need not know when its run is gone.
            attended = [sys.executable, "-m", "broker.server_child", str(os.getpid()), *words]
            process = ServerProcess([*attended, "--model", str(self._model_dir)], what="the server command")
        self._process = process
        await asyncio.to_thread(process.start)
        # More requests than the engine works on would queue there, on the programs' clocks (case T17).
        sequences = Limiter(spec.max_batch) if spec.kind == "embedded" else None
        return CompletionsClient(process.base_url, process.model_name, sequences=sequences)
