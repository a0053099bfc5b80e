import copy
from dataclasses import replace

import pytest
import torch
from rl_samples import batch_of, parameters, row, sampled, tiny_llama, two_call_batch
from transformers import LlamaForCausalLM

from rl.contract import RlContract
from rl.embedded.passes import CPU_TOKENS, GPU_TOKENS, tokens_of
from rl.embedded.scoring import row_logprobs
from rl.embedded.trainer import Trainer
from rl.rows import Row


@pytest.mark.spec("RL-10", "RL-09")
@pytest.mark.parametrize("by_columns", [False, True])
def test_one_step_equals_adamw_on_the_objective_written_out_plainly(by_columns: bool) -> None:
    model = tiny_llama()
    reference = copy.deepcopy(model)
    if by_columns:
        # The engine keeps projections this way; the fused optimiser must not mind.
        for layer in model.model.layers:
            layer.mlp.up_proj.weight.data = layer.mlp.up_proj.weight.data.t().contiguous().t()
    batch = two_call_batch(model)
    contract = RlContract(learning_rate=1e-3)
    metrics = Trainer(model, contract, token_budget=8).step(batch)

    # At the rollout policy every ratio is 1, so the loss is -sum(A logp) / tokens in gradient.
    advantage = 0.5 / (0.5**0.5 + 1e-6)
    signs = [1, 1, -1, 1, 0, 0, 0]
    total = sum(
        sign * advantage * row_logprobs(reference, item).sum()
        for sign, item in zip(signs, batch.rows, strict=True)
        if sign
    )
    tokens = sum(item.trainable for item in batch.rows)
    (-total / tokens).backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.01).step()

    assert metrics.gradient_norm == pytest.approx(float(norm), rel=1e-4)
    assert torch.allclose(parameters(model), parameters(reference), atol=1e-5)
    assert metrics.valid_tokens == tokens == 12
    assert metrics.trained_tokens == 8
    assert metrics.zero_variance_groups == 1
    assert metrics.clip_share == 0.0
    assert metrics.logprob_gap_max < 1e-5


def test_passes_are_as_large_as_asked_and_by_themselves_larger_on_a_gpu() -> None:
    trainer = Trainer(tiny_llama(), RlContract())
    assert trainer.passes.token_budget == CPU_TOKENS
    assert tokens_of("auto", torch.device("cuda", 1)) == GPU_TOKENS > CPU_TOKENS
    for kind in ("cpu", "cuda"):
        assert tokens_of(16, torch.device(kind)) == 16


def test_packing_and_micro_batches_change_nothing_but_speed() -> None:
    results = []
    for packing, budget in (("rows", 1), ("tree", 6), ("tree", 1_000)):
        model = tiny_llama()
        batch = two_call_batch(model)
        trainer = Trainer(model, RlContract(), packing=packing, token_budget=budget)
        trainer.accumulate(batch)
        found = [value.clone() for value in trainer.optimiser.gradients]
        results.append((trainer.step(batch), found))
    reference, plain = results[0]
    for metrics, found in results[1:]:
        assert metrics.gradient_norm == pytest.approx(reference.gradient_norm, rel=1e-4)
        assert metrics.loss == pytest.approx(reference.loss, abs=1e-5)
        for left, right in zip(found, plain, strict=True):
            assert torch.allclose(left, right, atol=1e-5)
    assert results[2][0].computed_tokens < reference.computed_tokens


def test_entropy_and_gap_are_those_of_the_trained_tokens_by_the_plain_model() -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    # Task c is without contrast and the placeholder without a token: five rows of eight tokens are computed.
    rows = [item for item in batch.rows if item.trainable and item.trajectory.instance != "c"]
    entropies, shifted = [], []
    with torch.no_grad():
        for item in rows:
            ids = torch.tensor([item.prompt_ids + item.completion_ids[:-1]])
            logits = model(ids).logits[0, len(item.prompt_ids) - 1 :]
            entropies += torch.distributions.Categorical(logits=logits).entropy().tolist()
    for item in batch.rows:
        shifted.append(replace(item, rollout_logprobs=tuple(value - 0.1 for value in item.rollout_logprobs)))
    metrics = Trainer(model, RlContract()).step(batch_of(shifted, 2))
    assert metrics.trained_tokens == len(entropies)
    assert metrics.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)
    assert metrics.logprob_gap_mean == pytest.approx(0.1, abs=1e-5)
    assert metrics.logprob_gap_max == pytest.approx(0.1, abs=1e-5)


@pytest.mark.parametrize("packing", ["tree", "flat", "rows"])
def test_scoring_a_batch_gives_every_rows_log_probabilities_and_no_gradient(packing: str) -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    found, seconds = Trainer(model, RlContract(), packing=packing, token_budget=9).score(batch)
    assert seconds > 0
    for item, values in zip(batch.rows, found, strict=True):
        wanted = item.rollout_logprobs if item.trainable else ()
        assert values.tolist() == pytest.approx(wanted, abs=1e-5)
        assert not values.requires_grad
    assert all(value.grad is None for value in model.parameters())


@pytest.mark.spec("RL-10")
@pytest.mark.parametrize("packing", ["tree", "flat", "rows"])
def test_the_policy_is_trained_as_it_sampled_without_its_dropout(packing: str) -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    model.train()
    metrics = Trainer(model, RlContract(), packing=packing).step(batch)
    assert metrics.logprob_gap_max < 1e-5


@pytest.mark.spec("RL-06", "RL-07")
def test_a_batch_without_contrast_moves_no_weight() -> None:
    model = tiny_llama()
    before = parameters(model).clone()
    rows = [row([1, 2], [3, 4], trajectory=("a", number), reward=1.0) for number in range(2)]
    # With weight decay: no step is taken at all.
    metrics = Trainer(model, RlContract(weight_decay=0.5)).step(batch_of(sampled(model, rows), 2))
    assert torch.equal(parameters(model), before)
    assert (metrics.gradient_norm, metrics.trained_tokens) == (0.0, 0)
    assert (metrics.skipped, metrics.zero_variance_groups) == ("no_contrast", 1)


def test_two_trainers_from_the_same_weights_end_at_the_same_weights() -> None:
    ends = []
    for _ in range(2):
        model = tiny_llama()
        trainer = Trainer(model, RlContract(learning_rate=1e-2))
        batch = two_call_batch(model)
        for _ in range(2):
            trainer.step(batch)
        ends.append(parameters(model))
    assert torch.equal(ends[0], ends[1])


def test_steps_too_small_for_the_models_precision_still_add_up() -> None:
    model = tiny_llama().to(torch.bfloat16)
    batch = two_call_batch(model)
    trainer = Trainer(model, RlContract(learning_rate=2e-5))
    before = parameters(model).clone()
    trainer.step(batch)
    moved_once = (parameters(model) != before).float().mean()
    for _ in range(30):
        trainer.step(batch)
    moved_often = (parameters(model) != before).float().mean()
    assert moved_once < moved_often / 2
    assert all(value.dtype == torch.bfloat16 for value in model.parameters())


@pytest.mark.spec("RL-10")
def test_twenty_updates_teach_a_random_model_to_emit_the_rewarded_token() -> None:
    model = tiny_llama(seed=1, vocabulary=16)
    trainer = Trainer(model, RlContract(learning_rate=1e-2, prompts_per_batch=4))
    generator = torch.Generator().manual_seed(0)
    means = []
    for _ in range(20):
        rows = sample(model, generator)
        means.append(sum(sum(item.rewards) for item in rows) / len(rows))
        trainer.step(batch_of(rows, 8))
    assert sum(means[:3]) / 3 < 0.5
    assert sum(means[-3:]) / 3 > 0.8


@torch.no_grad()
def sample(model: LlamaForCausalLM, generator: torch.Generator) -> list[Row]:
    """Four prompts x eight attempts of four tokens; the reward is 1 if token 7 is among them."""
    prompts = torch.tensor([[1, 2, 3 + prompt] for prompt in range(4) for _ in range(8)])
    ids, logprobs = prompts, torch.empty(32, 0)
    for _ in range(4):
        distribution = model(ids).logits[:, -1].log_softmax(-1)
        tokens = torch.multinomial(distribution.exp(), 1, generator=generator)
        ids = torch.cat([ids, tokens], dim=1)
        logprobs = torch.cat([logprobs, distribution.gather(1, tokens)], dim=1)
    return [
        row(
            ids[index, :3].tolist(),
            ids[index, 3:].tolist(),
            trajectory=(str(index // 8), index % 8),
            reward=float(7 in ids[index, 3:]),
            logprobs=logprobs[index].tolist(),
        )
        for index in range(32)
    ]
