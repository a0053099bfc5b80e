"""Attention of new prompts: each span's tokens over the positions of its slot up to themselves.

Owns which spans are one product. Spans of about one length are padded to the longest and multiplied
together; a span alone is not padded at all. Must not know running sequences, sampling or the model.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from broker.engine.plan import Span

_LARGEST: Final = 1 << 24
"""Entries of one group's mask before heads are counted: 16 MiB, and 64 MiB as numbers."""


def group_spans(spans: Sequence[Span]) -> list[tuple[Span, ...]]:
    """Spans that may be multiplied together: less than twice as long as one another, and not too many."""
    groups: list[tuple[Span, ...]] = []
    for span in sorted(spans, key=lambda span: (_tokens(span), span.slot)):
        together = (*groups[-1], span) if groups else (span,)
        if groups and _tokens(span) < 2 * _tokens(together[0]) and _entries(together) <= _LARGEST:
            groups[-1] = together
        else:
            groups.append((span,))
    return groups


def _tokens(span: Span) -> int:
    return span.end - span.start


def _entries(spans: Sequence[Span]) -> int:
    return len(spans) * max(map(_tokens, spans)) * max(span.end for span in spans)


class SpanGroup:
    """Some spans as one product. A shorter span repeats its last token, whose output is the same again."""

    def __init__(self, spans: Sequence[Span], device: torch.device) -> None:
        self._length = max(span.end for span in spans)
        counts = torch.tensor([_tokens(span) for span in spans])
        own = torch.minimum(torch.arange(int(counts.max()))[None, :], counts[:, None] - 1)
        rows = own + torch.tensor([span.flat for span in spans])[:, None]
        places = own + torch.tensor([span.start for span in spans])[:, None]
        self._rows = rows.to(device)
        self._mask = torch.arange(self._length, device=device) <= places.to(device)[:, :, None]
        slots = [span.slot for span in spans]
        # One slot is read in place; several have to be gathered.
        self._slots = slice(slots[0], slots[0] + 1) if len(slots) == 1 else torch.tensor(slots, device=device)

    def attend(self, output: Tensor, grouped: Tensor, keys: Tensor, values: Tensor, scaling: float) -> None:
        """Fill the spans' rows of `output`.

        `output` and `grouped` (the queries): [tokens, heads, group, head_dim]; `keys` and `values`:
        [slots, heads, length, head_dim].
        """
        spans, width = self._rows.shape
        heads, group, head_dim = grouped.shape[1:]
        queries = grouped[self._rows].permute(0, 2, 3, 1, 4).reshape(spans, heads, group * width, head_dim)
        found = functional.scaled_dot_product_attention(
            queries,
            keys[self._slots, :, : self._length],
            values[self._slots, :, : self._length],
            attn_mask=self._mask.repeat(1, group, 1)[:, None],
            scale=scaling,
        )
        found = found.view(spans, heads, group, width, head_dim).permute(0, 3, 1, 2, 4)
        output[self._rows] = found
