"""Fused kernels for the layers of Qwen3.5-shaped models, where flash-linear-attention is installed.

What they replace: the gated delta net (chunked, aware of sequence boundaries, without repeated heads), its
short convolution and gated norm, the zero-centred RMS norm, and the gated MLP, whose product is made again in
the backward pass. The same functions as transformers', in fewer passes over memory; `rl.embedded.scoring`
compares both on real input before it uses them. Must not know rows, packs or losses.
"""

# flash-linear-attention is optional, and torch is annotated only in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false

import functools
import importlib
import importlib.util
import warnings
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl.embedded.layout import Layout
from rl.embedded.patches import Forward, Patch

BUCKET_SHARE: Final = 8
"""Packs are padded to an eighth of the token budget: some kernels are compiled anew for each size."""
_SHORT: Final = 512
"""Up to this width a row is a head's."""
_DELTA_NET: Final = frozenset(
    {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "A_log", "dt_bias", "norm", "out_proj"}
)


@dataclass(frozen=True)
class Kernels:
    """The functions of flash-linear-attention that are used, by what they do."""

    delta_rule: Any
    convolution: Any
    norm: Any
    group_norm: Any
    """Of heads, with or without a gate. The package's other norms of short rows are compiled and tuned anew
    for every number of rows, which takes most of a minute each time."""
    gated_projection: Any


@functools.cache
def find_kernels() -> Kernels | None:
    """None where the package is absent or does not import."""
    if importlib.util.find_spec("fla") is None:
        return None
    try:
        return Kernels(
            delta_rule=importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule,
            convolution=importlib.import_module("fla.modules.convolution").causal_conv1d,
            norm=importlib.import_module("fla.modules.layernorm").rms_norm,
            group_norm=importlib.import_module("fla.modules.layernorm_gated").rmsnorm_fn,
            gated_projection=importlib.import_module("fla.modules.activations").swiglu_linear,
        )
    except (ImportError, AttributeError, RuntimeError) as error:
        warnings.warn(f"flash-linear-attention is installed but unusable: {error}", stacklevel=2)
        return None


def fused(
    model: nn.Module,
    *,
    device: str | None = None,
    delta_net: bool = True,
    norms: bool = True,
    mlp: bool = True,
) -> list[Patch]:
    """Replacements for the modules that have one; empty on a CPU and without the kernels.

    Warns, naming the cost, when a model with recurrent layers must do without. `device`: the model's own.
    """
    nets = [module for module in model.modules() if is_delta_net(module)]
    if (device or next(model.parameters()).device.type) != "cuda":
        return []
    kernels = find_kernels()
    if kernels is None:
        if nets:
            warnings.warn(
                "without flash-linear-attention a gated delta net trains at less than half the speed at 2,048"
                " tokens a row and at a tenth at 24,576: install flash-linear-attention and tilelang",
                stacklevel=2,
            )
        return []
    patches: list[Patch] = [_fused_delta_net(module, kernels) for module in nets] if delta_net else []
    for module in model.modules():
        kind = type(module).__name__
        if norms and kind == "Qwen3_5RMSNorm":
            patches.append(_fused_norm(module, kernels))
        if mlp and kind == "Qwen3_5MLP" and _is_silu(module):
            patches.append(_fused_mlp(module, kernels))
    return patches


def is_delta_net(module: nn.Module) -> bool:
    """Whether the module has the parts of Qwen3.5's gated delta net."""
    return all(hasattr(module, name) for name in _DELTA_NET)


def _is_silu(module: nn.Module) -> bool:
    return type(cast("Any", module).act_fn).__name__ in ("SiLU", "SiLUActivation")


def _fused_norm(module: nn.Module, kernels: Kernels) -> Patch:
    norm: Any = module

    def forward(hidden: Tensor) -> Tensor:
        # The weight is centred at 0. In float32, for 1 + w in bfloat16 drops most of w.
        weight = 1.0 + norm.weight.float()
        if len(weight) > _SHORT:
            return kernels.norm(hidden, weight, None, eps=norm.eps)
        return _by_heads(kernels, hidden, weight, eps=norm.eps)

    return module, forward


def _by_heads(
    kernels: Kernels, hidden: Tensor, weight: Tensor, *, eps: float, gate: Tensor | None = None
) -> Tensor:
    """RMS norm over the last dimension of [..., heads, width], times silu(gate); `weight` [width]."""
    heads = hidden.shape[-2]
    normed = kernels.group_norm(
        hidden.flatten(-2),
        weight.repeat(heads),
        None,
        z=None if gate is None else gate.flatten(-2),
        eps=eps,
        group_size=len(weight),
        norm_before_gate=True,
    )
    return normed.unflatten(-1, (heads, len(weight)))


def _fused_mlp(module: nn.Module, kernels: Kernels) -> Patch:
    mlp: Any = module

    def forward(hidden: Tensor) -> Tensor:
        return kernels.gated_projection(
            mlp.gate_proj(hidden), mlp.up_proj(hidden), mlp.down_proj.weight, mlp.down_proj.bias
        )

    return module, forward


def _fused_delta_net(module: nn.Module, kernels: Kernels) -> Patch:
    net: Any = module
    plain: Forward = module.forward

    def forward(hidden_states: Tensor, *args: Any, flat: Layout | None = None, **options: Any) -> Any:
        if flat is None:
            return plain(hidden_states, *args, **options)
        edges = {"cu_seqlens": flat.boundaries, "cu_seqlens_cpu": flat.boundaries_cpu}
        query, key, value = _convolved(net, kernels, net.in_proj_qkv(hidden_states), edges)
        query, key = (
            _unit(kernels, part.unflatten(-1, (-1, net.head_k_dim)), eps=1e-6) for part in (query, key)
        )
        # Per head and token, hence small: fusing these would save nothing.
        decay = -net.A_log.float().exp() * functional.softplus(
            net.in_proj_a(hidden_states).float() + net.dt_bias.float()
        )
        output, _ = kernels.delta_rule(
            query,
            key,
            value.unflatten(-1, (-1, net.head_v_dim)),
            g=decay,
            beta=net.in_proj_b(hidden_states).sigmoid(),
            **edges,
        )
        gate = net.in_proj_z(hidden_states).unflatten(-1, (-1, net.head_v_dim))
        normed = _by_heads(kernels, output, net.norm.weight, eps=net.norm.variance_epsilon, gate=gate)
        return net.out_proj(normed.flatten(-2))

    return module, forward


def _unit(kernels: Kernels, heads: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension: an RMS norm whose weight is 1 / sqrt(width)."""
    width = heads.shape[-1]
    weight = torch.full((width,), width**-0.5, device=heads.device)
    return _by_heads(kernels, heads, weight, eps=eps / width)


def _convolved(
    net: Any, kernels: Kernels, mixed: Tensor, edges: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value after the short convolution, each a tensor of its own (the kernels want that)."""
    sizes = [net.key_dim, net.key_dim, net.value_dim]
    weights = net.conv1d.weight[:, 0].split(sizes)
    biases: list[Tensor | None] = [None, None, None]
    if net.conv1d.bias is not None:
        biases = list(net.conv1d.bias.split(sizes))
    parts = [
        kernels.convolution(part, weight, bias, activation="silu", **edges)[0]
        for part, weight, bias in zip(mixed.split(sizes, dim=-1), weights, biases, strict=True)
    ]
    return parts[0], parts[1], parts[2]
