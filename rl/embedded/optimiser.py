"""AdamW in float32 on whatever precision the model computes in.

A float32 model is stepped in place. A narrower one (bfloat16 on a GPU) gets float32 master weights, for a
step of 1e-6 is lost in bfloat16; gradients are summed over micro-batches in float32 too, each parameter's as
soon as it is complete, so that a whole second set of gradients never exists. State lives and dies with this
object (RL-12). Must not know losses or batches.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rl.contract import RlContract


class Optimiser:
    """Between `begin` and `end`, every backward pass adds to `gradients`."""

    def __init__(self, model: nn.Module, contract: RlContract) -> None:
        self._names = [name for name, _ in model.named_parameters()]
        self._live = list(model.parameters())
        self._masters = [
            value if value.dtype == torch.float32 else value.detach().float() for value in self._live
        ]
        self._handles: list[RemovableHandle] = []
        self._maximum_norm = contract.max_grad_norm
        self._adam = torch.optim.AdamW(
            self._masters,
            lr=contract.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=contract.weight_decay,
            fused=True,
        )

    def begin(self) -> None:
        """Zero gradients, not absent ones: moments also decay for what had no part in an update."""
        self.end()
        for master in self._masters:
            master.grad = torch.zeros_like(master)
        for live, master in self._pairs():
            self._handles.append(live.register_post_accumulate_grad_hook(_into(master)))

    @property
    def gradients(self) -> list[Tensor]:
        return [master.grad for master in self._masters if master.grad is not None]

    @property
    def masters(self) -> dict[str, Tensor]:
        """A narrower model's weights in float32, by parameter name; empty where the model itself has them."""
        return dict(zip(self._names, self._masters, strict=True)) if self._pairs() else {}

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
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for value in [*self._live, *self._masters]:
            value.grad = None

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        pairs = zip(self._live, self._masters, strict=True)
        return [(live, master) for live, master in pairs if live is not master]


def _into(master: Tensor) -> Callable[[Tensor], None]:
    def move(live: Tensor) -> None:
        if live.grad is not None and master.grad is not None:
            master.grad += live.grad
        live.grad = None

    return move
