"""Rows side by side: the plan, and a model with recurrent layers that must not see across a boundary."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_samples import row, tiny_hybrid, tiny_llama, two_call_batch
from transformers import PreTrainedModel

from rl.contract import RlContract
from rl.embedded import fitting, kernels
from rl.embedded.fitting import fit
from rl.embedded.flat import plan_flat
from rl.embedded.layout import flat_attention
from rl.embedded.patches import patched
from rl.embedded.scoring import row_logprobs, score_flat
from rl.embedded.trainer import Trainer
from rl.rows import Row

letters = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=7)
batches = st.lists(st.tuples(letters, letters), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def hybrid() -> PreTrainedModel:
    return tiny_hybrid()


def rows_of(pairs: list[tuple[list[int], list[int]]]) -> list[Row]:
    return [row(prompt, completion) for prompt, completion in pairs]


@settings(max_examples=80, deadline=None)
@given(batches, st.integers(1, 40), st.sampled_from([1, 8]))
def test_what_stands_before_a_tokens_source_in_its_sequence_is_the_rows_own_ids(
    pairs: list[tuple[list[int], list[int]]], budget: int, bucket: int
) -> None:
    rows = rows_of(pairs)
    packs = plan_flat(rows, budget, bucket)
    assert sorted(member for pack in packs for member in pack.members) == list(range(len(rows)))
    for pack in packs:
        assert sum(pack.lengths) == pack.size
        assert pack.size % bucket == 0
        assert pack.size - pack.used < bucket
        sequences = len(pack.lengths) - (pack.size > pack.used)
        assert pack.used <= budget or sequences == 1
        starts = [node - position for node, position in enumerate(pack.positions)]
        for member, sources in zip(pack.members, pack.sources, strict=True):
            whole = rows[member].prompt_ids + rows[member].completion_ids
            for offset, node in enumerate(sources):
                seen = tuple(pack.token_ids[starts[node] : node + 1])
                assert seen == whole[: len(rows[member].prompt_ids) + offset]


def test_a_call_whose_messages_a_later_call_repeats_is_read_off_the_later_one() -> None:
    first, second, third = [1, 2, 3], [1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 9, 6, 7, 8]
    rows = [row(first, [4, 5]), row(second, [6, 7]), row(third, [1, 1]), row([1, 2, 3, 7], [4])]
    (pack,) = plan_flat(rows, 1_000)
    assert sorted(pack.lengths) == [4, 10]
    assert plan_flat(rows[::-1], 1_000)[0].size == pack.size


def gradients(model: PreTrainedModel) -> list[torch.Tensor]:
    return [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]


@settings(max_examples=12, deadline=None)
@given(batches, st.integers(1, 60))
@pytest.mark.spec("RL-06", "RL-10")
def test_packed_rows_of_a_recurrent_model_equal_one_row_at_a_time(
    hybrid: PreTrainedModel, pairs: list[tuple[list[int], list[int]]], budget: int
) -> None:
    rows = rows_of(pairs)
    weights = torch.linspace(-1, 1, 7)
    hybrid.zero_grad()
    plain = [row_logprobs(hybrid, item) for item in rows]
    sum((values * weights[: len(values)]).sum() for values in plain).backward()
    expected = gradients(hybrid)
    hybrid.zero_grad()
    found = fit(hybrid, "auto")
    assert found.way == "flat"
    for pack in plan_flat(rows, budget, bucket=4):
        with patched(found.patches), flat_attention(hybrid):
            packed = score_flat(hybrid, pack, rows).logprobs.split([len(item) for item in pack.sources])
            sum((values * weights[: len(values)]).sum() for values in packed).backward()
        for member, values in zip(pack.members, packed, strict=True):
            assert torch.allclose(values, plain[member], atol=1e-4)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    # Norms of small vectors blow rounding up: 4e-5 of the largest gradient was seen, in float64 1e-7.
    for left, right in zip(gradients(hybrid), expected, strict=True):
        assert torch.allclose(left, right, atol=1e-3 * max(scale, 1.0))


@pytest.mark.spec("RL-06")
def test_rows_of_a_flat_pack_cannot_see_each_other(hybrid: PreTrainedModel) -> None:
    values = []
    patches = fit(hybrid, "flat").patches
    for other in (7, 8, 9):
        rows = [row([1, 2, 3], [4, 5, 6]), row([other, 2, 3, 9], [other, 5, 6, 7])]
        (pack,) = plan_flat(rows, 100)
        with patched(patches), flat_attention(hybrid), torch.no_grad():
            scores = score_flat(hybrid, pack, rows).logprobs.split([len(item) for item in pack.sources])
        values.append(scores[pack.members.index(0)])
    assert torch.allclose(values[0], values[1], atol=1e-6)
    assert torch.allclose(values[0], values[2], atol=1e-6)


@pytest.mark.parametrize("make", [tiny_hybrid, tiny_llama])
def test_flat_and_row_updates_give_the_same_gradient(make: type) -> None:
    results = []
    for packing in ("rows", "flat"):
        model = make()
        trainer = Trainer(model, RlContract(), packing=packing, token_budget=12)
        assert trainer.packing == packing
        batch = two_call_batch(model)
        trainer.accumulate(batch)
        found = [value.clone() for value in trainer.optimiser.gradients]
        results.append((trainer.step(batch), found))
    (rows, plain), (flat, packed) = results
    assert flat.gradient_norm == pytest.approx(rows.gradient_norm, rel=1e-4)
    assert flat.entropy == pytest.approx(rows.entropy, rel=1e-5)
    assert flat.computed_tokens < rows.computed_tokens
    for left, right in zip(packed, plain, strict=True):
        assert torch.allclose(left, right, atol=1e-5)


def test_an_update_leaves_the_module_as_the_engine_knows_it() -> None:
    model = tiny_hybrid()
    implementation = model.config._attn_implementation
    trainer = Trainer(model, RlContract(), packing="flat", checkpointing=2)
    metrics = trainer.step(two_call_batch(model))
    assert metrics.checkpointed_layers == 2
    assert model.config._attn_implementation == implementation
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_recurrent_layer_that_ignores_boundaries_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignoring(mixer: torch.nn.Module) -> tuple[torch.nn.Module, object]:
        plain = mixer.forward
        return mixer, lambda hidden, flat=None, **options: plain(hidden_states=hidden, **options)

    monkeypatch.setattr(fitting, "one_by_one", ignoring)
    assert fit(tiny_hybrid(), "auto").way == "rows"


def test_layers_that_a_flat_pack_cannot_serve_go_row_by_row() -> None:
    sliding = tiny_llama()
    sliding.config.layer_types = ["sliding_attention", "full_attention"]
    assert fit(sliding, "flat").way == "rows"
    window = tiny_llama()
    window.config.sliding_window = 4
    assert fit(window, "flat").way == "rows"


def test_kernels_that_disagree_with_the_model_are_not_used(
    hybrid: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(model: torch.nn.Module) -> list[tuple[torch.nn.Module, object]]:
        norms = [module for module in model.modules() if type(module).__name__ == "Qwen3_5RMSNorm"]
        return [(norm, lambda hidden: 2 * hidden) for norm in norms]

    monkeypatch.setattr(fitting, "fused", wrong)
    with pytest.warns(UserWarning, match="trained without"):
        found = fit(hybrid, "auto")
    assert found.way == "flat"
    assert len(found.patches) == 3


def test_without_kernels_on_a_gpu_the_warning_names_the_cost(
    hybrid: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "find_kernels", lambda: None)
    with pytest.warns(UserWarning, match="less than half the speed"):
        assert kernels.fused(hybrid, device="cuda") == []
    assert kernels.fused(tiny_llama(), device="cuda") == []
