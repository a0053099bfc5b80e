"""The embedded engine as a child process. Imports no torch. Must not know requests."""

import os
import sys
from pathlib import Path

from broker.server_process import ServerProcess


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
