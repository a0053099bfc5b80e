import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_samples import row, tiny_llama
from transformers import LlamaForCausalLM

from rl.embedded.fitting import choose_packing
from rl.embedded.packing import plan_packs
from rl.embedded.scoring import row_logprobs, tree_logprobs
from rl.rows import Row

# Two letters only, so that random rows share prefixes, nest and coincide.
letters = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=7)
batches = st.lists(st.tuples(letters, letters), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_llama()


def rows_of(pairs: list[tuple[list[int], list[int]]]) -> list[Row]:
    return [row(prompt, completion) for prompt, completion in pairs]


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 40))
def test_walking_up_the_tree_from_any_token_gives_back_the_rows_own_ids(
    pairs: list[tuple[list[int], list[int]]], budget: int
) -> None:
    rows = rows_of(pairs)
    packs = plan_packs(rows, budget)
    assert sorted(member for pack in packs for member in pack.members) == list(range(len(rows)))
    for pack in packs:
        assert pack.size <= budget or len(pack.members) == 1
        mask = pack.attention_mask()
        for member, sources in zip(pack.members, pack.sources, strict=True):
            whole = rows[member].prompt_ids + rows[member].completion_ids
            for offset, node in enumerate(sources):
                visible = np.flatnonzero(mask[node])
                order = visible[np.argsort(pack.positions[visible])]
                assert pack.positions[order].tolist() == list(range(len(order)))
                assert tuple(pack.token_ids[order]) == whole[: len(rows[member].prompt_ids) + offset]


def test_shared_tokens_are_laid_down_once() -> None:
    system, question = [3] * 20, [[4] * 10, [5] * 10]
    pairs = [(system + question[task], [6 + attempt] * 4) for task in range(2) for attempt in range(3)]
    (pack,) = plan_packs(rows_of(pairs), 1_000)
    assert pack.size == 20 + 2 * 10 + 6 * 3


def gradients(model: LlamaForCausalLM) -> list[torch.Tensor]:
    return [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]


@settings(max_examples=25, deadline=None)
@given(batches, st.integers(1, 60))
def test_packed_logprobs_and_gradients_equal_one_row_at_a_time(
    model: LlamaForCausalLM, pairs: list[tuple[list[int], list[int]]], budget: int
) -> None:
    rows = rows_of(pairs)
    weights = torch.linspace(-1, 1, 7)
    model.zero_grad()
    plain = [row_logprobs(model, item) for item in rows]
    sum((values * weights[: len(values)]).sum() for values in plain).backward()
    expected = gradients(model)
    model.zero_grad()
    for pack in plan_packs(rows, budget):
        packed = tree_logprobs(model, pack, rows)
        sum((values * weights[: len(values)]).sum() for values in packed).backward()
        for member, values in zip(pack.members, packed, strict=True):
            assert torch.allclose(values, plain[member], atol=1e-5)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    for left, right in zip(gradients(model), expected, strict=True):
        assert torch.allclose(left, right, atol=1e-5 * max(scale, 1.0))


@pytest.mark.spec("RL-06")
def test_rows_of_a_pack_cannot_see_each_other(model: LlamaForCausalLM) -> None:
    first = row([1, 2, 3], [4, 5, 6])
    values = []
    for other in (7, 8, 9):
        rows = [first, row([1, 2, 3], [other, 5, 6, 7])]
        (pack,) = plan_packs(rows, 100)
        values.append(tree_logprobs(model, pack, rows)[pack.members.index(0)])
    assert torch.allclose(values[0], values[1], atol=1e-6)
    assert torch.allclose(values[0], values[2], atol=1e-6)


def test_a_full_attention_model_is_packed_and_others_go_row_by_row(model: LlamaForCausalLM) -> None:
    assert choose_packing(model, "auto") == "tree"
    assert choose_packing(model, "rows") == "rows"
    sliding = tiny_llama()
    sliding.config.layer_types = ["sliding_attention", "full_attention"]
    assert choose_packing(sliding, "auto") == "rows"


def test_a_model_that_ignores_the_tree_mask_is_found_out_by_the_probe() -> None:
    deaf = tiny_llama()
    forward = deaf.model.forward
    deaf.model.forward = lambda *args, attention_mask=None, **named: forward(*args, **named)  # type: ignore[method-assign]
    assert choose_packing(deaf, "auto") == "rows"
