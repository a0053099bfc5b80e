"""What an update does with a batch, numbers or a machine that is not as it should be."""

import copy
import json
import threading

import pytest
import torch
from rl_samples import batch_of, parameters, row, sampled, tiny_llama, two_call_batch

from rl.contract import RlContract
from rl.embedded.passes import CPU_TOKENS
from rl.embedded.trainer import Trainer
from rl.errors import TrainingError


@pytest.mark.spec("RL-07")
def test_an_empty_batch_is_an_error() -> None:
    model = tiny_llama()
    before = parameters(model).clone()
    placeholders = [row([0], [0], trajectory=("a", number), mask=[0]) for number in range(2)]
    for rows in ([], placeholders):
        with pytest.raises(TrainingError, match=r"RL-07: no trainable token in \d rows"):
            Trainer(model, RlContract()).step(batch_of(rows, 2))
    assert torch.equal(parameters(model), before)


@pytest.mark.spec("RL-08")
def test_a_batch_without_contrast_leaves_weights_and_moments_alone() -> None:
    model = tiny_llama()
    twin = copy.deepcopy(model)
    contract = RlContract(learning_rate=1e-2, weight_decay=0.1)
    with_gap, without = Trainer(model, contract), Trainer(twin, contract)
    batch = two_call_batch(model)
    equal = [row([1, 2], [3, 4], trajectory=("a", number), reward=1.0) for number in range(2)]
    for trainer in (with_gap, without):
        trainer.step(batch)
    metrics = with_gap.step(batch_of(sampled(model, equal), 2))
    assert metrics.skipped == "no_contrast"
    assert (metrics.micro_batches, metrics.trained_tokens, metrics.valid_tokens) == (0, 0, 4)
    for trainer in (with_gap, without):
        assert trainer.step(batch).skipped is None
    assert torch.equal(parameters(model), parameters(twin))


def break_(model: torch.nn.Module, how: str) -> object:
    """A model whose loss, or only its gradient, is not finite; returns what mends it."""
    if how == "gradient":
        return model.model.layers[0].mlp.up_proj.weight.register_hook(lambda value: value * torch.nan)
    return model.model.norm.register_forward_hook(lambda module, inputs, output: output * torch.inf)


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_numbers_that_are_not_finite_take_no_step_and_are_counted(how: str) -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    trainer = Trainer(model, RlContract(learning_rate=1e-2))
    before = parameters(model).clone()
    broken = break_(model, how)
    metrics = trainer.step(batch)
    broken.remove()
    assert torch.equal(parameters(model), before)
    assert metrics.skipped == "not_finite"
    assert metrics.gradient_norm is None
    assert (metrics.loss is None) == (how == "loss")
    json.loads(json.dumps(metrics.model_dump(mode="json"), allow_nan=False))
    # The next update is none the worse for it.
    assert trainer.step(batch).skipped is None
    assert torch.isfinite(parameters(model)).all()
    assert not torch.equal(parameters(model), before)


def test_the_third_update_that_is_not_finite_fails_the_phase_with_the_numbers() -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    trainer = Trainer(model, RlContract())
    broken = break_(model, "loss")
    trainer.step(batch)
    broken.remove()
    trainer.step(batch)
    break_(model, "gradient")
    before = parameters(model).clone()
    trainer.step(batch)
    with pytest.raises(
        TrainingError, match=r"3 updates were not finite \(loss nan, .*; loss -?[\d.]+"
    ) as caught:
        trainer.step(batch)
    assert "lower the learning rate" in str(caught.value)
    assert torch.equal(parameters(model), before)
    assert all(value.grad is None for value in model.parameters())


def test_a_stop_is_heard_between_two_passes_and_leaves_the_weights_alone() -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    trainer = Trainer(model, RlContract(learning_rate=1e-2), packing="rows")
    before = parameters(model).clone()
    stop, passes = threading.Event(), 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            stop.set()

    handle = model.model.layers[0].register_forward_pre_hook(count)
    with pytest.raises(TrainingError, match="stopped before its step"):
        trainer.step(batch, stop)
    handle.remove()
    assert passes == 2
    assert torch.equal(parameters(model), before)
    assert all(value.grad is None for value in model.parameters())
    assert trainer.step(batch, threading.Event()).skipped is None


class Scarce:
    """A machine with room for `tokens` tokens a pass: more of them, and an allocator says no."""

    def __init__(self, model: torch.nn.Module, tokens: int, *, allocator: str) -> None:
        self.tokens = tokens
        self.allocator = allocator
        self.refused = 0
        model.model.layers[1].register_forward_pre_hook(self.look, with_kwargs=True)

    def look(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], options: object) -> None:
        if inputs[0].shape[1] > self.tokens:
            self.refused += 1
            if self.allocator == "cpu":
                torch.empty(1 << 60, dtype=torch.uint8)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("allocator", ["cpu", "cuda"])
def test_out_of_memory_begins_the_batch_again_with_half_the_budget(allocator: str) -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    trainer = Trainer(model, RlContract(), packing="flat", token_budget=20)
    reference = Trainer(copy.deepcopy(model), RlContract(), packing="flat", token_budget=20)
    reference.accumulate(batch)
    scarce = Scarce(model, 10, allocator=allocator)
    trainer.accumulate(batch)
    assert scarce.refused == 1
    pairs = zip(trainer.optimiser.gradients, reference.optimiser.gradients, strict=True)
    # Nothing of the pass that failed is in it.
    assert all(torch.allclose(left, right, atol=1e-6) for left, right in pairs)
    assert trainer.passes.token_budget == 10
    assert trainer.passes.checkpointing == 2


def test_the_halving_is_recorded_once_and_a_second_shortage_fails_with_the_numbers() -> None:
    model = tiny_llama()
    batch = two_call_batch(model)
    trainer = Trainer(model, RlContract(), packing="flat", token_budget=20)
    scarce = Scarce(model, 10, allocator="cuda")
    first, second = trainer.step(batch), trainer.step(batch)
    assert (first.halvings, first.token_budget, first.checkpointed_layers) == (1, 10, 2)
    assert (second.halvings, second.token_budget) == (0, 10)
    before = parameters(model).clone()
    scarce.tokens = 4
    with pytest.raises(TrainingError, match="token budget 10, longest row 8 tokens, 2 of 2 layers"):
        trainer.step(batch)
    assert torch.equal(parameters(model), before)
    assert all(value.grad is None for value in model.parameters())


def test_another_failure_of_a_pass_is_not_taken_for_a_shortage() -> None:
    model = tiny_llama()

    def fail(*_: object) -> None:
        raise RuntimeError("expected scalar type Float")

    trainer = Trainer(model, RlContract(), packing="flat")
    model.model.layers[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="expected scalar type"):
        trainer.step(two_call_batch(model))
    assert trainer.passes.token_budget == CPU_TOKENS
