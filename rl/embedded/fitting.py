"""Which way of packing a model takes, found by trying it: rules by architecture first, then numbers.

Every way is compared with the model's ordinary forward pass on three small rows before it is used, so that a
model that ignores a mask, a boundary or a kernel is trained more slowly, never wrongly. Must not know losses
or rewards.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor, nn

from rl.embedded.flat import FlatPack, plan_flat
from rl.embedded.kernels import fused
from rl.embedded.layout import flat_attention, one_by_one, recurrent_mixers
from rl.embedded.packing import plan_packs
from rl.embedded.patches import Patch, patched
from rl.embedded.scoring import row_logprobs, score_flat, score_row, tree_logprobs
from rl.rows import Row, TrajectoryId

Way = Literal["tree", "flat", "rows"]
Packing = Literal["auto", "tree", "flat", "rows"]

_EXACT: Final = 1e-3
"""Largest difference between two ways in float32 that is rounding."""
_NARROW: Final = 0.05
"""The same in narrower types, and on average where kernels round in another order."""


@dataclass(frozen=True)
class Fit:
    """How a model is trained."""

    way: Way
    patches: tuple[Patch, ...] = ()
    """Forward methods for the time of an update."""
    plain_head: bool = True
    """The logits are one linear layer of the last hidden states."""


def fit(model: nn.Module, wanted: Packing) -> Fit:
    """`auto` is the tree where the model takes one, else flat packs, else rows; so are failed wishes."""
    rows = _probe_rows(int(cast("Any", model).config.vocab_size))
    with torch.no_grad():
        plain = [row_logprobs(model, row) for row in rows]
    head = _agrees(model, plain, lambda: [score_row(model, row).logprobs for row in rows])
    if wanted == "rows" or not head:
        return Fit("rows", plain_head=head)
    if wanted == "tree" or (wanted == "auto" and choose_packing(model, "auto") == "tree"):
        return Fit("tree")
    patches = _flat_patches(model, rows, plain)
    return Fit("rows") if patches is None else Fit("flat", tuple(patches))


def choose_packing(model: nn.Module, wanted: Literal["auto", "tree", "rows"]) -> Literal["tree", "rows"]:
    """`auto` packs if the model takes a tree mask: full attention everywhere, and a numeric probe agrees."""
    if wanted != "auto":
        return wanted
    config = cast("Any", model).config
    layers: Sequence[str] = getattr(config, "layer_types", None) or ()
    if any(kind != "full_attention" for kind in layers) or _slides(config):
        return "rows"
    rows = _probe_rows(int(config.vocab_size))
    (pack,) = plan_packs(rows, token_budget=1_000)
    with torch.no_grad():
        plain = [row_logprobs(model, rows[member]) for member in pack.members]
    return "tree" if _agrees(model, plain, lambda: tree_logprobs(model, pack, rows)) else "rows"


def _flat_patches(model: nn.Module, rows: Sequence[Row], plain: Sequence[Tensor]) -> list[Patch] | None:
    """With kernels where they agree, else with boundaries only; None if the model takes no flat pack."""
    mixers = recurrent_mixers(model)
    if mixers is None or _slides(cast("Any", model).config):
        return None
    (pack,) = plan_flat(rows, token_budget=1_000)
    expected = [plain[member] for member in pack.members]
    lengths = [len(source) for source in pack.sources]

    def agree(patches: Sequence[Patch]) -> bool:
        def run() -> list[Tensor]:
            with patched(patches), flat_attention(model):
                return list(score_flat(model, pack, rows).logprobs.split(lengths))

        return _agrees(model, expected, run)

    kernels = fused(model)
    boundaries = [one_by_one(mixer) for mixer in mixers]
    if kernels:
        replaced = {id(module) for module, _ in kernels}
        complete = [*kernels, *(patch for patch in boundaries if id(patch[0]) not in replaced)]
        if agree(complete) and _differentiates(model, pack, rows, complete):
            return complete
        warnings.warn("the fused kernels do not work for this model: it is trained without", stacklevel=3)
    return boundaries if agree(boundaries) else None


def _differentiates(model: nn.Module, pack: FlatPack, rows: Sequence[Row], patches: Sequence[Patch]) -> bool:
    """Whether the kernels have a backward pass here: some refuse it on some GPUs, and only when asked."""
    first = next(value for value in model.parameters() if value.dim() == 1 and value.requires_grad)
    try:
        with patched(patches), flat_attention(model), torch.enable_grad():
            total = score_flat(model, pack, rows).logprobs.sum()
            (gradient,) = torch.autograd.grad(total, [first])
    except (ImportError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        warnings.warn(f"no backward pass with the fused kernels: {error}", stacklevel=4)
        return False
    return bool(torch.isfinite(gradient).all())


def _agrees(model: nn.Module, plain: Sequence[Tensor], run: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether another way gives the same log-probabilities; a way that the model refuses does not."""
    try:
        with torch.no_grad():
            other = run()
    except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError):
        return False
    gaps = torch.cat([(left - right).abs() for left, right in zip(other, plain, strict=True)])
    if next(model.parameters()).dtype in (torch.float32, torch.float64):
        return float(gaps.max()) <= _EXACT
    return float(gaps.mean()) <= _NARROW


def _slides(config: Any) -> bool:
    return bool(getattr(config, "sliding_window", None)) and bool(getattr(config, "use_sliding_window", True))


def _probe_rows(vocabulary: int) -> list[Row]:
    prefix = tuple(range(3, 11))
    return [_probe_row(prefix, tail, vocabulary) for tail in ((5, 7, 9), (5, 8, 2), (11, 4, 6))]


def _probe_row(prefix: tuple[int, ...], tail: tuple[int, ...], vocabulary: int) -> Row:
    completion = tuple(token % vocabulary for token in tail)
    return Row(
        prompt_ids=tuple(token % vocabulary for token in prefix),
        completion_ids=completion,
        rollout_logprobs=(0.0,) * len(completion),
        loss_mask=(1,) * len(completion),
        rewards=(0.0,) * len(completion),
        trajectory=TrajectoryId("probe", 0),
        is_last=True,
    )
