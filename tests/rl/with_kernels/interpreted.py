"""The patches of `rl.embedded.kernels` beside the layers that they replace, on a CPU, as a script.

    TRITON_INTERPRET=1 python -m tests.rl.with_kernels.interpreted KERNELS OUT

flash-linear-attention lies in the folder KERNELS, numbers go to the JSON file OUT. Triton's interpreter
executes the package's own kernels in float32; what a compiler or a narrower type makes of them is not seen.

Every number is a relative error, |found - wanted| / |wanted| over all elements of a tensor; of a layer's
gradients, the worst tensor. transformers' layers run their torch functions: they choose when they are
imported, hence the order of imports here.
"""

# flash-linear-attention is not where types are checked, and torch is annotated only in part:
# pyright: basic, reportMissingImports=false

# ruff: noqa: E402

import functools
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

assert "fla" not in sys.modules, "transformers' layers would call what they are compared with"
sys.path.append(sys.argv[1])

from triton.runtime.autotuner import Autotuner

from rl.embedded import fitting, kernels
from rl.embedded.flat import plan_flat
from rl.embedded.layout import Layout, flat_attention, one_by_one, recurrent_mixers
from rl.embedded.patches import Patch, patched
from rl.embedded.scoring import score_flat
from rl.rows import Row, TrajectoryId

VOCABULARY = 50
WIDTH = 32
Numbers = dict[str, float]


class Count(int):
    """A loop's variable, a plain integer in the interpreter, with the conversion that a compiled one has."""

    def to(self, _dtype: Any) -> "Count":
        return self


def counts(*ends: Any) -> Iterator[Count]:
    return map(Count, range(*ends))


def prepare_triton() -> None:
    """Nothing is tuned, and the one kernel that converts a loop's variable finds one that it can convert."""
    tuners: Any = Autotuner
    tuners.prune_configs = lambda tuner, *_, **__: tuner.configs[:1]
    recurrence: Any = importlib.import_module("fla.ops.common.chunk_delta_h")
    recurrence.range = counts


def model_of(kinds: list[str]) -> Any:
    """Qwen3.5 in small: two value heads to a key head, values wider than keys, no weight at its default."""
    torch.manual_seed(0)
    shape = Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_key_head_dim=16,
        linear_value_head_dim=32,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    model = Qwen3_5ForCausalLM(shape).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("A_log"):
                # Slow decay: what one chunk or sequence leaves to the next is not forgotten at once.
                value.uniform_(-5, -3)
            elif value.dim() == 1:
                value.add_(0.3 * torch.randn_like(value))
    return model


def hidden_states(*shape: int) -> Tensor:
    """Tokens of very different sizes, the small ones near where a norm's epsilon counts."""
    torch.manual_seed(1)
    sizes = 10 ** torch.empty(*shape[:-1], 1).uniform_(-3.5, 0.5)
    return (torch.randn(shape) * sizes).requires_grad_()


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def worst(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Of several tensors; not a number if one is not."""
    return float(torch.tensor([relative(*pair) for pair in zip(found, wanted, strict=True)]).max())


def with_gradients(
    module: nn.Module, patches: list[Patch], hidden: Tensor, **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """The output, then the gradients of the input and of all parameters under a random cotangent."""
    with patched(patches):
        output = module(hidden, **options)
    torch.manual_seed(2)
    gradients = torch.autograd.grad(output, [hidden, *module.parameters()], torch.randn_like(output))
    return output.detach(), list(gradients)


def compared(module: nn.Module, own: list[Patch], fused: Patch, hidden: Tensor, **options: Any) -> Numbers:
    """The fused layer beside its own way."""
    wanted, gradients = with_gradients(module, own, hidden, **options)
    found, others = with_gradients(module, [fused], hidden, **options)
    return {"output": relative(found, wanted), "gradients": worst(others, gradients)}


def delta_net(package: kernels.Kernels, *lengths: int, bias: bool) -> Numbers:
    """A pack of sequences of these lengths, with or without a bias in the convolution."""
    net = model_of(["linear_attention"]).model.layers[0].linear_attn
    if bias:
        net.conv1d.bias = nn.Parameter(torch.randn(len(net.conv1d.weight)))
    hidden = hidden_states(1, sum(lengths), WIDTH)
    pack = Layout(lengths, torch.device("cpu"))
    return compared(net, [one_by_one(net)], kernels._fused_delta_net(net, package), hidden, flat=pack)


def no_boundaries(package: kernels.Kernels) -> Numbers:
    """The same layer, told that two sequences are one: what the comparison above must notice."""
    net = model_of(["linear_attention"]).model.layers[0].linear_attn
    hidden = hidden_states(1, 24, WIDTH)
    with torch.no_grad():
        with patched([one_by_one(net)]):
            wanted = net(hidden, flat=Layout((11, 13), torch.device("cpu")))
        with patched([kernels._fused_delta_net(net, package)]):
            found = net(hidden, flat=Layout((24,), torch.device("cpu")))
    return {"output": relative(found[:, 11:], wanted[:, 11:])}


def norm(package: kernels.Kernels, *shape: int) -> Numbers:
    module = modeling_qwen3_5.Qwen3_5RMSNorm(shape[-1])
    torch.manual_seed(3)
    nn.init.normal_(module.weight)
    return compared(module, [], kernels._fused_norm(module, package), hidden_states(*shape))


def mlp(package: kernels.Kernels, *, bias: bool) -> Numbers:
    module = model_of(["full_attention"]).model.layers[0].mlp
    if bias:
        for part in (module.gate_proj, module.up_proj, module.down_proj):
            part.bias = nn.Parameter(torch.randn(part.out_features))
    return compared(module, [], kernels._fused_mlp(module, package), hidden_states(1, 70, WIDTH))


def rows_of(*lengths: int) -> list[Row]:
    """Rows of that many input tokens that share nothing, a third of it completion."""
    torch.manual_seed(4)
    rows: list[Row] = []
    for index, length in enumerate(lengths):
        ids = tuple(torch.randint(VOCABULARY, (length + 1,)).tolist())
        size = length // 3
        rows.append(
            Row(
                prompt_ids=ids[:-size],
                completion_ids=ids[-size:],
                rollout_logprobs=(-1.0,) * size,
                loss_mask=(1,) * size,
                rewards=(0.0,) * size,
                trajectory=TrajectoryId("t", index),
                is_last=True,
            )
        )
    return rows


def whole_model() -> Numbers:
    """A model that `Fit` packs with kernels by its own probe; then a pack with and without them."""
    model = model_of(["linear_attention", "full_attention"])
    anywhere = functools.partial(kernels.fused, device="cuda")
    with mock.patch.object(fitting, "fused", anywhere):
        fit = fitting.fit(model, "auto")
    rows = rows_of(21, 66)
    # Padded, as packs with kernels are.
    (pack,) = plan_flat(rows, 1_000, bucket=8)

    def scored(patches: Any) -> tuple[Tensor, list[Tensor]]:
        with patched(patches), flat_attention(model):
            scores = score_flat(model, pack, rows).logprobs
            return scores.detach(), list(torch.autograd.grad(scores.sum(), list(model.parameters())))

    wanted, gradients = scored([one_by_one(mixer) for mixer in recurrent_mixers(model) or ()])
    found, others = scored(fit.patches)
    return {
        "patches": len(fit.patches),
        "patches_wanted": len(anywhere(model)),
        "output": relative(found, wanted),
        "gradients": worst(others, gradients),
    }


def main() -> None:
    torch.set_num_threads(1)
    # The interpreter computes masked elements too.
    warnings.simplefilter("ignore")
    package = kernels.find_kernels()
    assert package is not None, "flash-linear-attention does not import"
    prepare_triton()
    parts: dict[str, Callable[[], Numbers]] = {
        # No multiples of a chunk of 64; three chunks with a state; fewer tokens than the convolution is wide.
        "delta net": lambda: delta_net(package, 37, 130, 3, bias=False),
        "delta net with a bias": lambda: delta_net(package, 9, 3, bias=True),
        "delta net without boundaries": lambda: no_boundaries(package),
        "norm": lambda: norm(package, 1, 70, WIDTH),
        "norm of heads": lambda: norm(package, 1, 35, 3, 16),
        "wide norm": lambda: norm(package, 1, 70, 640),
        "mlp": lambda: mlp(package, bias=False),
        "mlp with biases": lambda: mlp(package, bias=True),
        "whole model": whole_model,
    }
    found: dict[str, Numbers] = {}
    for name, part in parts.items():
        started = time.perf_counter()
        found[name] = part()
        found[name]["seconds"] = round(time.perf_counter() - started, 1)
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
