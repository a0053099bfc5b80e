"""Root-mean-square norms as one kernel while a step is computed or captured, instead of six.

Every norm is tried on numbers before it is replaced, so that one of another formula (a weight that counts
from 1, say) stays as it is. The module is as it was afterwards: a trainer that shares it computes with its
own norms. Must not know attention or slots.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = tuple[nn.Module, Callable[[Tensor], Tensor]]


@torch.inference_mode()
def find_norms(model: nn.Module) -> list[Norm]:
    """The norms that have an equal of one kernel, each with it."""
    return [
        (module, fused)
        for module in model.modules()
        if (fused := _fused(module)) is not None and _equal(module, fused)
    ]


@contextmanager
def replaced(norms: list[Norm]) -> Generator[None]:
    """The modules call their equals inside. Only one thread may compute with the model meanwhile."""
    try:
        for module, fused in norms:
            cast("Any", module).forward = fused
        yield
    finally:
        for module, _ in norms:
            module.__dict__.pop("forward", None)


def _fused(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    weight: Any = getattr(module, "weight", None)
    epsilon: Any = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        return None
    if not isinstance(epsilon, float):
        return None
    # The parameter itself, whose storage a trainer steps in place.
    return partial(_norm, weight=weight, epsilon=epsilon)


def _norm(states: Tensor, *, weight: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(states, weight.shape, weight, epsilon)


def _equal(module: nn.Module, fused: Callable[[Tensor], Tensor]) -> bool:
    weight = cast("Tensor", module.weight)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, len(weight), generator=generator).to(weight)
    # Some of both: a first token's states are a thousand times those of the others.
    states = states * torch.tensor([[1e-2], [1.0], [1e3]]).to(weight)
    try:
        one, other = cast("Tensor", module(states)), fused(states)
    except (RuntimeError, TypeError, ValueError):
        return False
    close = 1e-5 if weight.dtype == torch.float32 else 2e-2
    return one.dtype == other.dtype and bool(torch.allclose(one, other, rtol=close, atol=close))
