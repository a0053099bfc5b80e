"""Job processes forked from one process that has done their imports (`trainer.start=fork`).

Importing torch and transformers takes 6 s; a small job takes 2. The standard library's fork server has done
those imports and nothing else (no thread pool, no device), so that a fork of it is as good as a new process.
On a GPU this is not used: the driver does not survive a fork. Needs no torch itself.
"""

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final, Self

from rl.process import PARENT_VARIABLE

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_IMPORTS: Final = ["transformers.models.llama.modeling_llama", "rl.embedded.job", "rl.validate"]
"""A model of transformers first: what all its causal models share is most of the time."""
_POLL_SECONDS: Final = 0.05
_BEFORE_FORKS: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy starts no pool of threads when it is imported."""


def prepare(environment: Mapping[str, str]) -> None:
    """Start the fork server, which imports in the background. Idempotent."""
    _CONTEXT.set_forkserver_preload(_IMPORTS)
    with _added({**environment, **_BEFORE_FORKS}):
        forkserver.ensure_running()


class ForkedProcess:
    """A forked job, with the few methods of `asyncio.subprocess.Process` that its owner uses."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @classmethod
    def start(cls, module: str, job: Path, log: Path, environment: Mapping[str, str]) -> Self:
        """Run `module` as `__main__` with the job's path, its output in `log`."""
        prepare(environment)
        process = _CONTEXT.Process(target=_work, args=(module, str(job), str(log)), daemon=True)
        process.start()
        return cls(process)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    async def wait(self) -> int:
        while (code := self._process.exitcode) is None:  # noqa: ASYNC110 - it is no child of this process
            await asyncio.sleep(_POLL_SECONDS)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _work(module: str, job: str, log: str) -> None:
    # Ctrl-C is the owner's to hear; it ends its jobs in good order.
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    # The fork server ends with the run, and the job with the fork server.
    os.environ[PARENT_VARIABLE] = str(os.getppid())
    sys.exit(import_module(module).main(job))


@contextmanager
def _added(environment: Mapping[str, str]) -> Generator[None]:
    """The fork server takes its environment from this process, and only at its start."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
