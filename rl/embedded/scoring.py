"""Log-probabilities of completion tokens under a model, with gradients: packed as a tree, or row by row.

Must not know losses, rewards or where the rows came from.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rl.embedded.packing import Pack, plan_packs
from rl.rows import Row, TrajectoryId

Packing = Literal["auto", "tree", "rows"]
HEAD_CHUNK = 512
"""Predicting positions whose vocabulary logits are held at once: 100 MB at 49,152 entries."""
_PROBE_TOLERANCE = {torch.float32: 1e-3}
"""Largest difference between both paths that is rounding; other precisions get 0.05."""


def tree_logprobs(model: nn.Module, pack: Pack, rows: Sequence[Row]) -> list[Tensor]:
    """Per member of the pack: log-probabilities [completion length] at temperature 1, in float32."""
    causal = cast("Any", model)
    device = next(model.parameters()).device
    mask = torch.zeros(1, 1, pack.size, pack.size, dtype=causal.dtype, device=device)
    # Additive, because both attention implementations of transformers take that form as it is.
    mask.masked_fill_(~torch.from_numpy(pack.attention_mask()).to(device), torch.finfo(causal.dtype).min)
    hidden = causal.base_model(
        input_ids=torch.from_numpy(pack.token_ids)[None].to(device),
        position_ids=torch.from_numpy(pack.positions)[None].to(device),
        attention_mask=mask,
        use_cache=False,
    ).last_hidden_state[0]
    lengths = [len(source) for source in pack.sources]
    nodes = torch.cat([torch.from_numpy(source) for source in pack.sources])
    targets = torch.tensor([token for member in pack.members for token in rows[member].completion_ids])
    # Attempts that said the same thing share nodes and targets; the wide vocabulary layer sees them once.
    pairs, inverse = torch.unique(torch.stack([nodes, targets]), dim=1, return_inverse=True)
    pairs, inverse = pairs.to(device), inverse.to(device)
    head = causal.get_output_embeddings()
    parts = [
        # Recomputed in the backward pass: the logits are the widest tensor of all and cheap to make again.
        checkpoint(_select, head, hidden[chunk[0]], chunk[1], use_reentrant=False)
        for chunk in pairs.split(HEAD_CHUNK, dim=1)
    ]
    return list(torch.cat(parts)[inverse].split(lengths))


def _select(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    logits = head(hidden).float()
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(dim=1)


def row_logprobs(model: nn.Module, row: Row) -> Tensor:
    """One row by the model's ordinary forward pass: right for every architecture, and the reference."""
    device = next(model.parameters()).device
    ids = torch.tensor([row.prompt_ids + row.completion_ids[:-1]], device=device)
    length = len(row.completion_ids)
    logits = cast("Any", model)(input_ids=ids, use_cache=False, logits_to_keep=length).logits[0].float()
    targets = torch.tensor(row.completion_ids, device=device)
    return logits.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]


def choose_packing(model: nn.Module, wanted: Packing) -> Literal["tree", "rows"]:
    """`auto` packs if the model takes a tree mask: full attention everywhere, and a numeric probe agrees."""
    if wanted != "auto":
        return wanted
    config = cast("Any", model).config
    layers: Sequence[str] = getattr(config, "layer_types", None) or ()
    if any(kind != "full_attention" for kind in layers) or _slides(config):
        return "rows"
    tolerance = _PROBE_TOLERANCE.get(next(model.parameters()).dtype, 0.05)
    return "tree" if _probe(model) <= tolerance else "rows"


def _slides(config: Any) -> bool:
    return bool(getattr(config, "sliding_window", None)) and bool(getattr(config, "use_sliding_window", True))


@torch.no_grad()
def _probe(model: nn.Module) -> float:
    """Largest difference between both paths on three small rows; infinite if the model refuses a tree."""
    vocabulary = int(cast("Any", model).config.vocab_size)
    prefix = tuple(range(3, 11))
    rows = [_probe_row(prefix, tail, vocabulary) for tail in ((5, 7, 9), (5, 8, 2), (11, 4, 6))]
    (pack,) = plan_packs(rows, token_budget=1_000)
    try:
        packed = tree_logprobs(model, pack, rows)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return float("inf")
    plain = [row_logprobs(model, rows[member]) for member in pack.members]
    return max(float((left - right).abs().max()) for left, right in zip(packed, plain, strict=True))


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
