"""How the run starts vLLM: settings, command line and environment (HOST-10, HOST-12). Must not start it."""

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from broker.errors import ServiceRefused

_MODULE: Final = ("python", "-m", "vllm.entrypoints.openai.api_server")
_OURS: Final = frozenset(
    {
        "--model",
        "--host",
        "--port",
        "--uds",
        "--served-model-name",
        "--max-model-len",
        "--max-num-seqs",
        "--dtype",
        "--gpu-memory-utilization",
        "--tensor-parallel-size",
        "-tp",
        "--seed",
        "--generation-config",
        "--override-generation-config",
        "--api-key",
        "--logprobs-mode",
    }
)


class VllmSettings(BaseModel):
    """The vLLM server that the run starts. Its context, batch and seed are the run's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...] = _MODULE
    """A leading `python` is this interpreter. vLLM of another environment: `[/opt/vllm/bin/vllm, serve]`."""
    devices: tuple[int | str, ...] = ()
    """For CUDA_VISIBLE_DEVICES: indices as nvidia-smi counts them, or UUIDs; empty leaves it the parent's."""
    tensor_parallel: int = Field(default=0, ge=0)
    """GPUs that share one copy of the model; 0 is one for each of `devices`."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Fixed for the whole run, whatever a folder says. Exports are in float32, and small steps (1e-5 on a
    135 M model) vanish in bfloat16, which is faster."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of each device's memory that vLLM takes for weights and cache."""
    enforce_eager: bool = False
    """No CUDA graphs: starts sooner, generates slower."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM, as they are."""
    environment: dict[str, str] = Field(default_factory=dict[str, str])
    """Further variables."""
    start_seconds: float = Field(default=600.0, gt=0)
    """From the start of the process until it says that it is well."""

    @model_validator(mode="after")
    def _leaves_ours_alone(self) -> Self:
        taken = sorted({word.partition("=")[0] for word in self.arguments} & _OURS)
        if taken:
            raise ValueError(
                f"model.vllm.arguments must not hold {', '.join(taken)}: the run sets it (model.vllm.*, "
                "model.max_batch, budgets.context_tokens, seed)"
            )
        if not self.command:
            raise ValueError("model.vllm.command is empty: leave it out, or give the words that start vLLM")
        return self

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(str(device) for device in self.devices)

    def check_installed(self) -> None:
        """Raise `ServiceRefused` where there is no such command, or this interpreter has no vLLM."""
        first = self.command[0]
        here = self.command == _MODULE and importlib.util.find_spec("vllm") is None
        if here or (first != "python" and shutil.which(first) is None):
            raise ServiceRefused(
                "model.inference=vllm needs vLLM: pip install 'vllm>=0.10.2' into this environment, name one "
                "that is elsewhere (model.vllm.command=[/opt/vllm/bin/vllm,serve]), or run a server yourself "
                "(model=endpoint)"
            )

    def words(
        self, model_dir: Path, *, name: str, port: int, context_tokens: int, sequences: int, seed: int
    ) -> list[str]:
        """The command line."""
        command = [sys.executable if word == "python" else word for word in self.command]
        # `vllm serve` takes the folder as its first argument, the module as an option.
        command += [str(model_dir)] if command[-1] == "serve" else ["--model", str(model_dir)]
        values: dict[str, object] = {
            "--host": "127.0.0.1",
            "--port": port,
            "--served-model-name": name,
            "--max-model-len": context_tokens,
            "--max-num-seqs": sequences,
            "--dtype": self.dtype,
            "--gpu-memory-utilization": self.gpu_memory_utilization,
            "--tensor-parallel-size": self.tensor_parallel or max(len(self.devices), 1),
            "--seed": seed,
            # A folder's own sampling defaults must change nothing (HOST-12).
            "--generation-config": "vllm",
        }
        command += [str(word) for pair in values.items() for word in pair]
        command += ["--disable-uvicorn-access-log", *(["--enforce-eager"] if self.enforce_eager else [])]
        return [*command, *self.arguments]

    def variables(self) -> Mapping[str, str]:
        """Variables beside the parent's."""
        found = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            # It compiles kernels with nvcc at the first request, which few machines have.
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            # Device numbers as nvidia-smi has them, for that is whom the proof asks.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        if self.devices:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.device_names)
        return {**found, **self.environment}
