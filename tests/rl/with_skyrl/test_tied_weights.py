"""SkyRL's own sharding of a model with a tied output layer, with our worker's guard and without (RL-10).

One process, gloo, no GPU: what asks for one there is told that it is the CPU.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture(autouse=True)
def one_process_on_a_cpu(flash_attn_stub: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda value, *_a, **_k: value)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def guard() -> AbstractContextManager[None]:
    from rl.skyrl.worker import tied_when_sharded

    return tied_when_sharded()


def one_step(around: AbstractContextManager[None], *, tied: bool) -> tuple[int, dict[str, torch.Tensor]]:
    """Shard a model as SkyRL does, step it once: how many parameters that were, and what is exported."""
    from skyrl.backends.skyrl_train.distributed import fsdp_strategy, fsdp_utils

    torch.manual_seed(0)
    strategy = fsdp_strategy.FSDPStrategy.__new__(fsdp_strategy.FSDPStrategy)
    strategy.fsdp_config = SimpleNamespace(
        mixed_precision=None, cpu_offload=False, reshard_after_forward=True, wrap_policy={}
    )
    strategy.device_mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    with around:
        model = strategy._fsdp_init_model(LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.randint(0, 64, (2, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    stepped = len(optimiser.param_groups[0]["params"])
    return stepped, fsdp_utils.fsdp2_get_full_state_dict(model)


@pytest.mark.spec("EXP-03", "RL-10")
def test_a_tied_output_layer_is_trained_as_one_weight() -> None:
    stepped, exported = one_step(guard(), tied=True)
    alone, _ = one_step(guard(), tied=False)
    assert torch.equal(exported["lm_head.weight"], exported["model.embed_tokens.weight"])
    assert stepped == alone - 1


@pytest.mark.spec("EXP-03")
def test_without_the_guard_upstream_trains_two_weights() -> None:
    """When this fails, upstream has mended it and `rl.skyrl.worker` can go."""
    _, exported = one_step(nullcontext(), tied=True)
    assert not torch.equal(exported["lm_head.weight"], exported["model.embed_tokens.weight"])


def test_an_untied_model_is_left_as_it_is() -> None:
    _, exported = one_step(guard(), tied=False)
    assert not torch.equal(exported["lm_head.weight"], exported["model.embed_tokens.weight"])


def test_the_guard_leaves_skyrl_as_it_found_it() -> None:
    from skyrl.backends.skyrl_train.distributed import fsdp_strategy

    before = fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict
    with guard():
        assert fsdp_strategy.apply_fsdp2 is not before[0]
    assert (fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict) == before
