"""Log-probabilities of completion tokens under a model, with gradients: packed, or row by row.

Must not know losses, rewards or where the rows came from.
"""

# torch annotates these only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from rl.embedded.flat import FlatPack
from rl.embedded.head import choose
from rl.embedded.layout import Layout
from rl.embedded.packing import Index, Pack
from rl.rows import Row


@dataclass(frozen=True)
class Scores:
    """Of the completion tokens of some rows, one row after the other, at temperature 1."""

    logprobs: Tensor
    """[tokens], at least in float32, with a gradient."""
    entropies: Tensor
    """[tokens], in nats, without one."""


def score_tree(model: nn.Module, pack: Pack, rows: Sequence[Row]) -> Scores:
    """The members of a prefix tree, in the pack's order."""
    causal = cast("Any", model)
    device = next(model.parameters()).device
    mask = torch.zeros(1, 1, pack.size, pack.size, dtype=causal.dtype, device=device)
    # Additive, because both attention implementations of transformers take that form as it is.
    mask.masked_fill_(~torch.from_numpy(pack.attention_mask()).to(device), torch.finfo(causal.dtype).min)
    hidden = _hidden(model, pack.token_ids, pack.positions, attention_mask=mask)
    return _scores(model, hidden, pack, rows)


def score_flat(model: nn.Module, pack: FlatPack, rows: Sequence[Row]) -> Scores:
    """The members of a flat pack, in its order. Call it, and its backward pass, inside `flat_attention`."""
    layout = Layout(pack.lengths, next(model.parameters()).device)
    return _scores(model, _hidden(model, pack.token_ids, pack.positions, flat=layout), pack, rows)


def score_row(model: nn.Module, row: Row) -> Scores:
    """One row by the model's ordinary forward pass, its logits in chunks.

    Right for every architecture whose logits are a linear layer of its last hidden states.
    """
    ids = torch.tensor([row.prompt_ids + row.completion_ids[:-1]], device=next(model.parameters()).device)
    causal = cast("Any", model)
    hidden = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, len(row.prompt_ids) - 1 :]
    targets = torch.tensor(row.completion_ids, device=ids.device)
    return Scores(*choose(causal.get_output_embeddings(), hidden, targets))


def row_logprobs(model: nn.Module, row: Row) -> Tensor:
    """One row by the model's own logits, all at once: the reference, [completion length] in float32."""
    return _own_scores(model, row).logprobs


def score_row_plainly(model: nn.Module, row: Row) -> Scores:
    """As `row_logprobs`: for models that do more to their logits than one linear layer."""
    return _own_scores(model, row)


def tree_logprobs(model: nn.Module, pack: Pack, rows: Sequence[Row]) -> list[Tensor]:
    """Per member of the pack: log-probabilities [completion length]."""
    lengths = [len(source) for source in pack.sources]
    return list(score_tree(model, pack, rows).logprobs.split(lengths))


def _own_scores(model: nn.Module, row: Row) -> Scores:
    device = next(model.parameters()).device
    ids = torch.tensor([row.prompt_ids + row.completion_ids[:-1]], device=device)
    length = len(row.completion_ids)
    logits = cast("Any", model)(input_ids=ids, use_cache=False, logits_to_keep=length).logits[0].float()
    every = logits.log_softmax(dim=1)
    targets = torch.tensor(row.completion_ids, device=device)
    with torch.no_grad():
        entropies = torch.special.entr(every.exp()).sum(dim=1)
    return Scores(every.gather(1, targets[:, None])[:, 0], entropies)


def _hidden(model: nn.Module, token_ids: Index, positions: Index, **options: Any) -> Tensor:
    """The last hidden states [tokens, width] of one sequence."""
    device = next(model.parameters()).device
    output = cast("Any", model).base_model(
        input_ids=torch.from_numpy(token_ids)[None].to(device),
        position_ids=torch.from_numpy(positions)[None].to(device),
        use_cache=False,
        **options,
    )
    return output.last_hidden_state[0]


def _scores(model: nn.Module, hidden: Tensor, pack: Pack | FlatPack, rows: Sequence[Row]) -> Scores:
    nodes = torch.cat([torch.from_numpy(source) for source in pack.sources])
    targets = torch.tensor([token for member in pack.members for token in rows[member].completion_ids])
    # Attempts that said the same thing share nodes and targets; the wide vocabulary layer sees them once.
    pairs, inverse = torch.unique(torch.stack([nodes, targets]), dim=1, return_inverse=True)
    pairs, inverse = pairs.to(hidden.device), inverse.to(hidden.device)
    logprobs, entropies = choose(cast("Any", model).get_output_embeddings(), hidden[pairs[0]], pairs[1])
    return Scores(logprobs[inverse], entropies[inverse])
