"""AdamW in float32 on whatever precision the model computes in.

A float32 model is stepped in place. A narrower one (bfloat16 on a GPU) gets float32 master weights, for a
step of 1e-6 is lost in bfloat16; gradients are summed over micro-batches in float32 too. State lives and dies
with this object (RL-12). Must not know losses or batches.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false

import torch
from torch import Tensor, nn

from rl.contract import RlContract


class Optimiser:
    """Between `begin` and `step`, call `collect` after each backward pass."""

    def __init__(self, model: nn.Module, contract: RlContract) -> None:
        self._live = list(model.parameters())
        self._masters = [
            value if value.dtype == torch.float32 else value.detach().float() for value in self._live
        ]
        self._maximum_norm = contract.max_grad_norm
        self._adam = torch.optim.AdamW(
            self._masters,
            lr=contract.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=contract.weight_decay,
            fused=True,
        )

    def begin(self) -> None:
        """Zero gradients, not absent ones: the moments must also decay in an update without signal."""
        for master in self._masters:
            master.grad = torch.zeros_like(master)

    def collect(self) -> None:
        """Add the model's gradients to the masters'; nothing to do where they are the same tensors."""
        for live, master in self._pairs():
            if live.grad is not None and master.grad is not None:
                master.grad += live.grad
                live.grad = None

    @property
    def gradients(self) -> list[Tensor]:
        return [master.grad for master in self._masters if master.grad is not None]

    def clip(self) -> Tensor:
        """Scale the gradient to the contract's largest norm; the norm before that."""
        return nn.utils.clip_grad_norm_(self._masters, self._maximum_norm)

    def step(self) -> None:
        self._adam.step()
        with torch.no_grad():
            for live, master in self._pairs():
                live.copy_(master)

    def end(self) -> None:
        """Give the gradients' memory back: the rollouts' caches and sandboxes need it."""
        for value in [*self._live, *self._masters]:
            value.grad = None

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        pairs = zip(self._live, self._masters, strict=True)
        return [(live, master) for live, master in pairs if live is not master]
