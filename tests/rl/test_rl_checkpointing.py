import pytest
import torch
from rl_samples import tiny_hybrid, tiny_llama, two_call_batch
from transformers import PreTrainedModel

from rl.contract import RlContract
from rl.embedded.checkpointing import Footprint, decoder_layers, measure
from rl.embedded.trainer import Trainer


@pytest.mark.parametrize("make", [tiny_llama, tiny_hybrid])
@pytest.mark.parametrize("packing", ["auto", "rows"])
def test_checkpointing_changes_no_gradient(make: type, packing: str) -> None:
    found = []
    for count in (0, 1, 100):
        model: PreTrainedModel = make()
        trainer = Trainer(model, RlContract(), packing=packing, checkpointing=count)
        sums = trainer.accumulate(two_call_batch(model))
        assert sums.checkpointed_layers == min(count, len(decoder_layers(model)))
        found.append(trainer.optimiser.gradients)
    for other in found[1:]:
        assert all(torch.equal(left, right) for left, right in zip(found[0], other, strict=True))


def test_checkpointed_layers_run_twice() -> None:
    model = tiny_llama()
    runs = [0, 0]

    def count(index: int):
        def hook(*_: object) -> None:
            runs[index] += 1

        return hook

    for index, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(count(index))
    trainer = Trainer(model, RlContract(), packing="rows", checkpointing=1)
    batch = two_call_batch(model)
    runs[:] = [0, 0]
    passes = trainer.accumulate(batch).micro_batches
    assert runs == [2 * passes, passes]


def test_as_few_layers_are_checkpointed_as_the_memory_asks_for() -> None:
    footprint = Footprint(layers=10, plain=1_000.0, kept=10.0)
    whole = footprint.bytes_of(100, 0)
    assert whole == 100 * 1_000 + 100 * 100
    assert footprint.layers_to_checkpoint(100, whole) == 0
    assert footprint.layers_to_checkpoint(100, whole - 1) == 1
    assert footprint.layers_to_checkpoint(100, whole // 2) == 6
    assert footprint.layers_to_checkpoint(100, 1) == 10
    needs = [footprint.bytes_of(100, count) for count in range(11)]
    assert needs == sorted(needs, reverse=True)


class Plain(torch.nn.Module):
    """Two layers, each a product and a tanh, of which one knows by heart what they keep."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])

    @property
    def base_model(self) -> torch.nn.Module:
        return self

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden


def test_the_footprint_is_what_a_pass_keeps_beside_the_weights() -> None:
    model = Plain()
    footprint = measure(model, 16, lambda: model(torch.arange(16) % 11))
    # The ids; the embedding's output, which the first product needs; each tanh's output, the first of which
    # the second product needs as well.
    assert footprint.plain == 8 + 3 * 8 * 4
    assert (footprint.layers, footprint.kept) == (2, 2 * 8 * 4)


def test_every_layer_checkpointed_keeps_an_input_each() -> None:
    model = tiny_llama()
    trainer = Trainer(model, RlContract(), packing="flat")
    plain = trainer.passes.footprint()
    assert plain.bytes_of(1_000, plain.layers) < plain.bytes_of(1_000, 0)
