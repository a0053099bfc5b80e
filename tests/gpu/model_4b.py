"""A model of Qwen3.5-4B's shape with random weights, and the work that an update on it takes."""

# torch and transformers are annotated only in part:
# pyright: basic

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from rl.embedded.passes import input_length
from rl.rows import Row

PEAK = 790e12
"""bf16 FLOP/s that one H200 reaches in a large product; 6N is held against it."""


def config(tiny: bool, layers: int = 32) -> Qwen3_5TextConfig:
    """The text model of Qwen3.5-4B: three gated delta nets to one full attention, 4.206 B parameters."""
    sizes: dict[str, Any] = {
        "vocab_size": 248_320,
        "hidden_size": 2_560,
        "intermediate_size": 9_216,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    }
    if tiny:
        sizes |= {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
        sizes |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        sizes |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return Qwen3_5TextConfig(**sizes, max_position_embeddings=262_144, tie_word_embeddings=True)


def build(device: torch.device, shape: Qwen3_5TextConfig, dtype: torch.dtype) -> nn.Module:
    """Random weights, made on the device."""
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen3_5ForCausalLM(shape).eval()
    finally:
        torch.set_default_dtype(before)


def flops(model: nn.Module, rows: Sequence[Row]) -> tuple[float, float]:
    """Of an update on rows that share nothing: 6N a token, and what must be done (causal attention at half,
    the head at completion tokens only, no recomputation)."""
    shape: Any = model.config
    parameters = sum(value.numel() for value in model.parameters())
    head = shape.vocab_size * shape.hidden_size
    tokens = sum(map(input_length, rows))
    full = sum(kind == "full_attention" for kind in shape.layer_types)
    width = shape.num_attention_heads * shape.head_dim
    attention = sum(6 * input_length(row) ** 2 * width * full for row in rows)
    done = 6 * (parameters - head) * tokens + 6 * head * sum(row.trainable for row in rows) + attention
    return 6.0 * parameters * tokens, float(done)
