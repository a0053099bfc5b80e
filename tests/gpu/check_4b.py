"""Whether packs with kernels give the numbers of single rows without, on the 4 B shape's first layers."""

# torch and transformers are annotated only in part:
# pyright: basic

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5

from rl.contract import RlContract
from rl.embedded.flat import FlatPack
from rl.embedded.layout import flat_attention
from rl.embedded.patches import patched
from rl.embedded.scoring import row_logprobs, score_flat
from rl.embedded.trainer import Trainer
from rl.rows import Row
from tests.gpu import rows_4b
from tests.gpu.bench_4b import Bench
from tests.gpu.model_4b import build, config


def check(bench: Bench) -> dict[str, Any]:
    """Packed and fused against one row at a time with torch's own functions in float32, on four layers.

    Relative errors of gradients, and of transformers' own path in the same precision for comparison.
    """
    lengths = [50, 20, 30] if bench.tiny else [700, 300, 520]
    rows = rows_4b.of_length(lengths, completion=30, vocabulary=bench.vocabulary, seed=5)
    shape = config(bench.tiny, layers=4)
    with _torch_functions():
        exact = build(bench.device, shape, torch.float32)
        reference, wanted = _by_rows(exact, rows)
        weights = {name: value.detach() for name, value in exact.state_dict().items()}
        del exact
    model = build(bench.device, shape, bench.dtype)
    model.load_state_dict(weights)
    plain, plain_gradients = _by_rows(model, rows)
    trainer = Trainer(model, RlContract(), packing="flat", token_budget=sum(lengths))
    (part,) = trainer.passes.plan(rows)
    assert isinstance(part.pack, FlatPack)
    with patched(trainer.passes._fit.patches), flat_attention(model):
        scores = score_flat(model, part.pack, rows)
        scores.logprobs.sum().backward()
    sizes = [len(rows[member].completion_ids) for member in part.members]
    packed = dict(zip(part.members, scores.logprobs.detach().split(sizes), strict=True))
    ours = torch.cat([packed[index] for index in range(len(rows))])
    own_gradients = [value.grad for value in model.parameters()]
    return {
        "logprob_gap_ours": float((ours - reference).abs().mean()),
        "logprob_gap_plain": float((plain - reference).abs().mean()),
        "gradient_error_ours": _relative(own_gradients, wanted),
        "gradient_error_plain": _relative(plain_gradients, wanted),
        "patches": len(trainer.passes._fit.patches),
    }


def _by_rows(model: nn.Module, rows: Sequence[Row]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    values = []
    for row in rows:
        logprobs = row_logprobs(model, row)
        logprobs.sum().backward()
        values.append(logprobs.detach())
    gradients = [value.grad.float().clone() for value in model.parameters() if value.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(values), gradients


def _relative(found: Sequence[Any], wanted: Sequence[torch.Tensor]) -> float:
    pairs = list(zip(found, wanted, strict=True))
    error = sum(float((left.float() - right).norm() ** 2) for left, right in pairs)
    return (error / sum(float(right.norm() ** 2) for right in wanted)) ** 0.5


@contextmanager
def _torch_functions() -> Generator[None]:
    """transformers' torch implementations instead of the installed kernels."""
    module: Any = modeling_qwen3_5
    before = module.torch_chunk_gated_delta_rule
    module.torch_chunk_gated_delta_rule = getattr(before, "__wrapped__", before)
    try:
        yield
    finally:
        module.torch_chunk_gated_delta_rule = before
