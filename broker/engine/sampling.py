"""Draw the next tokens from logits, each request by its own seeded stream.

A draw depends on the request's seed and the position in its completion alone, so it is the same alone and in
any batch. Must not know slots, models or HTTP.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from broker.model import Sampling

_DRAWS: Final = 64


class SamplingRefused(ValueError):
    """A sampling parameter that this engine does not serve. The text names the value to send."""


def check_sampling(sampling: Sampling) -> None:
    """Refuse what is not served, instead of ignoring it. Raises `SamplingRefused`."""
    off = {
        "top_p": 1.0,
        "top_k": -1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    for name, value in off.items():
        given = getattr(sampling, name)
        if given != value and not (name == "top_k" and given == 0):
            raise SamplingRefused(f"the embedded engine serves {name}={value} only, not {given}")


def uniform_stream(seed: int) -> Iterator[float]:
    """Endless numbers in [0, 1), the same for the same seed on every machine."""
    generator = np.random.Generator(np.random.Philox(seed))
    while True:
        yield from generator.random(_DRAWS, dtype=np.float32).tolist()


def draw(logits: Tensor, temperatures: list[float], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """One token a row of `logits` [rows, vocabulary], with its log-probability at temperature 1.

    Temperature 0 takes the most likely token (the first of equals); any other one samples from the full
    support by inverting the cumulative distribution at the row's uniform number. Raises ArithmeticError for
    logits that are no numbers.
    """
    logits = logits.float()
    normalisers = torch.logsumexp(logits, dim=-1)
    if not bool(torch.isfinite(normalisers).all()):
        raise ArithmeticError("the model's logits are not finite: its weights have diverged")
    tokens = logits.argmax(dim=-1)
    sampled = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if sampled:
        rows = torch.tensor(sampled, device=logits.device)
        scale = torch.tensor([temperatures[row] for row in sampled], device=logits.device)
        chances = torch.tensor([uniforms[row] for row in sampled], device=logits.device)
        tokens[rows] = _invert(logits[rows] / scale[:, None], chances)
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    return cast("Any", tokens).tolist(), cast("Any", chosen - normalisers).tolist()


def draw_on_device(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """`draw` without a word from the host, for a captured step: token ids and log-probabilities, [rows] each.

    Logits that are no numbers give a log-probability that is not finite; the caller looks at it.
    """
    logits = logits.float()
    hot = temperatures > 0
    scale = torch.where(hot, temperatures, 1.0)
    # A row of NaN is found past the end, and an index there would stop the device.
    sampled = _invert(logits / scale[:, None], uniforms).clamp(max=logits.shape[1] - 1)
    tokens = torch.where(hot, sampled, logits.argmax(dim=-1))
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    return tokens, chosen - torch.logsumexp(logits, dim=-1)


def _invert(scaled: Tensor, uniforms: Tensor) -> Tensor:
    """Where each row's cumulative distribution passes its uniform number: [rows]."""
    cumulative = torch.softmax(scaled, dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding must not reach the end, or a token of probability 0 could be drawn.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
