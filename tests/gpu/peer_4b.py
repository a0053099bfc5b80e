"""The peer: a plain transformers training loop as one writes it by hand.

bfloat16 weights and AdamW state (fused), SDPA, every layer checkpointed, cross entropy on all tokens in
checkpointed chunks of 2,048, no master weights. Knows nothing of this project.
"""

import statistics
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CHUNK = 2_048


def loop(model: nn.Module, batch: int, length: int, peak: float, steps: int = 6) -> dict[str, Any]:
    """Tokens a second of full batches without padding; the median step after two."""
    causal: Any = model
    device = next(model.parameters()).device
    causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    causal.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    seconds = []
    for _ in range(steps):
        ids = torch.randint(causal.config.vocab_size, (batch, length), device=device)
        _wait(device)
        started = time.perf_counter()
        hidden = causal.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
        targets = ids[:, 1:].flatten()
        loss = sum(
            checkpoint(_cross_entropy, causal.lm_head, part, wanted, use_reentrant=False)
            for part, wanted in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
        )
        (loss / len(targets)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[2:])
    speed = batch * length / median
    parameters = sum(value.numel() for value in model.parameters())
    return {
        "seconds": round(median, 3),
        "first_step_seconds": round(seconds[0], 1),
        "tokens_per_second": speed,
        "share_6n": 6 * parameters * speed / peak,
        "notes": "plain transformers, bf16 state, all checkpointed",
    }


def _cross_entropy(head: nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head(hidden).float(), targets, reduction="sum")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
