"""Log-probabilities and entropies from hidden states, without ever holding all logits at once.

The logits of a vocabulary are the widest tensor of a training step: 8,192 positions x 248,320 ids are 8 GB in
float32. They are made in chunks, twice: once forward, once backward, from the saved log-sum-exp. Must not
know rows, packs or losses.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeArgument=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_LOGITS: Final = {"cpu": 1 << 25, "cuda": 1 << 29}
"""Logits held at once: 128 MB in float32 on a CPU, 2 GB on a GPU."""


def workspace_bytes(device: str) -> int:
    """What the head needs beside its inputs: logits in the model's type, in float32, and one temporary."""
    return 10 * _LOGITS.get(device, _LOGITS["cpu"])


def choose(
    head: nn.Module, hidden: Tensor, targets: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of its distribution, in nats at temperature 1.

    `head`: a linear layer to the vocabulary; `hidden` [n, width]; `targets` [n]; both results are [n], at
    least in float32. Only the log-probabilities carry a gradient. `chunk`: positions at once.
    """
    weight = cast("Tensor", head.weight)
    bias = cast("Tensor | None", getattr(head, "bias", None))
    if chunk is None:
        chunk = max(32, _LOGITS.get(hidden.device.type, _LOGITS["cpu"]) // weight.shape[0])
    return cast("Any", _Choose).apply(hidden, weight, bias, targets, chunk)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A new tensor, at least in float32: bfloat16 has 8 bits, and a logit of 20 then steps by 0.1."""
    logits = functional.linear(hidden, weight, bias)
    return logits if logits.dtype == torch.float64 else logits.float()


class _Choose(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        norm, logprobs, entropy = (hidden.new_empty(len(hidden), dtype=wide) for _ in range(3))
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, bias)
            norm[part] = logits.logsumexp(dim=1)
            logits -= norm[part, None]
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0]
            entropy[part] = -logits.exp().mul_(logits).sum(dim=1)
        ctx.save_for_backward(hidden, weight, bias, targets, norm)
        ctx.chunk = chunk
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """d log p(target) / d logits = one-hot(target) - p, scaled by the incoming gradient."""
        hidden, weight, bias, targets, norm = ctx.saved_tensors
        scale = gradients[0]
        to_hidden = torch.empty_like(hidden)
        to_weight = to_bias = None
        for start in range(0, len(hidden), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            step = _logits(hidden[part], weight, bias)
            step.sub_(norm[part, None]).exp_().mul_(-scale[part, None])
            step.scatter_add_(1, targets[part, None], scale[part, None])
            step = step.to(hidden.dtype)
            to_hidden[part] = step @ weight
            to_weight = _sum(to_weight, step.t() @ hidden[part])
            if bias is not None:
                to_bias = _sum(to_bias, step.sum(dim=0))
        narrow = [None if value is None else value.to(weight.dtype) for value in (to_weight, to_bias)]
        return to_hidden, narrow[0], narrow[1], None, None


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    # Chunks are summed in float32: 250,000 x 2,560 sums of bfloat16 would lose their small parts.
    if total is None:
        return part
    return (total if total.dtype == torch.float64 else total.float()).add_(part)
