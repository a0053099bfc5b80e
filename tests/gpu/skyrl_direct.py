"""SkyRL's trainer and its FSDP policy worker in one process, without Ray, data or engine.

What a GPU script measures is the worker's own time. The worker is `rl.skyrl.worker`'s, its options are
those of `rl.skyrl.mapping`. On a CPU, what asks for a GPU is told that it is the CPU.
"""

# SkyRL is not installed where types are checked, and torch is annotated only in part:
# pyright: basic, reportMissingImports=false

import contextlib
import functools
import importlib.util
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import distributed

from broker.budgets import Budgets
from rl.contract import RlContract
from rl.job_spec import Job
from rl.rows import Row
from rl.skyrl.mapping import overrides
from rl.skyrl.settings import SkyrlSettings
from tests.gpu.bench_4b import Bench
from tests.gpu.model_4b import build

GROUP = 8
"""Rows of one prompt, each an episode."""


class DirectDispatch:
    """SkyRL's `WorkerDispatch` of one worker in this process; keeps the seconds of each kind of call."""

    def __init__(self, worker: Any, bench: Bench) -> None:
        self.worker, self.bench = worker, bench
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        self.bench.sync()
        started = time.perf_counter()
        yield
        self.bench.sync()
        self.seconds[name] += time.perf_counter() - started

    def get_lcm_dp_size(self) -> int:
        return 1

    def empty_cache(self, model: str | None = None) -> None:
        if not self.bench.tiny:
            self.worker.empty_cache()

    def forward(self, model: str, data: Any) -> Any:
        with self.timed("score"):
            return self.worker.forward(data)

    forward_from_staged = forward

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [data[start:end] for start, end in boundaries]

    def forward_backward_from_staged(self, model: str, chunk: Any) -> Any:
        with self.timed("passes"):
            return self.worker.forward_backward(chunk)

    def optim_step(self, model: str) -> float:
        with self.timed("step"):
            return self.worker.optim_step()


def open_worker(configuration: Any, model: Path, device: torch.device) -> Any:
    """The policy worker as SkyRL's worker group starts one, with random weights of the config in `model`.

    Made on the device, instead of read from a file.
    """
    from skyrl.backends.skyrl_train.workers import model_wrapper

    from rl.skyrl.worker import TiedPolicyWorkerBase

    worker = TiedPolicyWorkerBase(
        cfg=configuration.trainer,
        world_size=1,
        rank=0,
        local_rank=0,
        master_addr="127.0.0.1",
        master_port=_free_port(),
        sequence_parallel_size=1,
    )
    worker.init_worker_process_group()
    loader = SimpleNamespace(from_pretrained=functools.partial(_random_weights, device))
    with mock.patch.object(model_wrapper, "AutoModelForCausalLM", loader):
        worker.init_model(str(model), num_training_steps=100)
    if device.type == "cuda":
        # As its trainer does before a pass: buffers that are in no file stay on the CPU until then.
        worker.backload_to_gpu(backload_optimizer=False, backload_model=True)
    return worker


def configuration(model: Path) -> Any:
    """SkyRL's configuration as a job of ours would have it, checked by SkyRL."""
    from rl.skyrl.experiment import build_config

    job = Job.model_construct(
        base_model=model,
        folder=model,
        contract=RlContract(updates=1, attempts=GROUP),
        skyrl=SkyrlSettings(micro_batch=1),
        budgets=Budgets(context_tokens=8_192, completion_tokens=4_096),
        seed=1,
    )
    return build_config(overrides(job))


def trainer_of(configuration: Any, dispatch: DirectDispatch, rows: int) -> Any:
    """SkyRL's trainer for a batch of so many rows, without data, engine or Ray."""
    from skyrl.train.trainer import RayPPOTrainer

    prompts = -(-rows // GROUP)
    configuration.trainer.train_batch_size = prompts
    configuration.trainer.policy_mini_batch_size = prompts
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    trainer.cfg = configuration
    trainer.all_metrics, trainer.all_timings = {}, {}
    trainer.tokenizer = SimpleNamespace(pad_token_id=0)
    trainer.dispatch = dispatch
    trainer.ref_model = None
    trainer.global_step = 1
    return trainer


def generated(rows: Sequence[Row]) -> tuple[dict[str, Any], list[str]]:
    """SkyRL's `GeneratorOutput` and uids: each row an episode, every other one rewarded, eight a prompt."""
    from skyrl.train.generators.base import TrajectoryID

    uids = [f"prompt-{index // GROUP}" for index in range(len(rows))]
    output = {
        "prompt_token_ids": [list(row.prompt_ids) for row in rows],
        "response_ids": [list(row.completion_ids) for row in rows],
        "rewards": [
            [0.0] * (len(row.completion_ids) - 1) + [float(index % 2)] for index, row in enumerate(rows)
        ],
        "loss_masks": [list(row.loss_mask) for row in rows],
        "stop_reasons": ["stop"] * len(rows),
        "rollout_metrics": None,
        "rollout_logprobs": [list(row.rollout_logprobs) for row in rows],
        "trajectory_ids": [TrajectoryID(uid, index % GROUP) for index, uid in enumerate(uids)],
        "is_last_step": [True] * len(rows),
    }
    return output, uids


@contextmanager
def one_process(tiny: bool) -> Iterator[None]:
    """What SkyRL imports and asks for, on a machine without flash-attn or, tiny, without a GPU."""
    with contextlib.ExitStack() as stack:
        if importlib.util.find_spec("flash_attn") is None:
            # Imported by SkyRL, never called without `remove_microbatch_padding`.
            padding: Any = ModuleType("flash_attn.bert_padding")
            padding.pad_input = padding.unpad_input = None
            sys.modules |= {"flash_attn": ModuleType("flash_attn"), "flash_attn.bert_padding": padding}
        if tiny:
            _on_a_cpu(stack)
        try:
            yield
        finally:
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _on_a_cpu(stack: contextlib.ExitStack) -> None:
    """What asks for a GPU gets the CPU; mixed precision stays."""
    from torch.distributed import device_mesh

    # Small products: threads of a busy machine would wait for each other.
    torch.set_num_threads(1)
    mesh, autocast, group = device_mesh.init_device_mesh, torch.autocast, distributed.init_process_group

    def cpu_mesh(_device: str, *arguments: Any, **named: Any) -> Any:
        return mesh("cpu", *arguments, **named)

    def cpu_autocast(device_type: str, *arguments: Any, **named: Any) -> Any:
        return autocast("cpu" if device_type == "cuda" else device_type, *arguments, **named)

    def cpu_group(backend: str, **named: Any) -> None:
        assert backend == "cpu:gloo,cuda:nccl"
        group("gloo", **named)

    for place, name, new in (
        (torch.Tensor, "cuda", lambda value, *_a, **_k: value),
        (torch.cuda, "current_device", lambda: torch.device("cpu")),
        (torch.cuda, "set_device", lambda *_a: None),
        (torch, "autocast", cpu_autocast),
        (device_mesh, "init_device_mesh", cpu_mesh),
        (distributed, "init_process_group", cpu_group),
    ):
        stack.enter_context(mock.patch.object(place, name, new))


def _random_weights(
    device: torch.device, _folder: str, *, config: Any, torch_dtype: torch.dtype, **_: Any
) -> torch.nn.Module:
    return build(device, config, torch_dtype)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
