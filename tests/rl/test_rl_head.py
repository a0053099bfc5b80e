import pytest
import torch
from torch import nn

from rl.embedded import head as head_module
from rl.embedded.head import choose


def made_up(dtype: torch.dtype, *, bias: bool = True) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    layer = nn.Linear(6, 50, bias=bias, dtype=dtype)
    hidden = (3 * torch.randn(23, 6, dtype=dtype)).requires_grad_()
    return layer, hidden, torch.randint(50, (23,))


@pytest.mark.parametrize("chunk", [1, 4, 23, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_chunked_log_softmax_equals_the_whole_one_in_values_and_gradients(chunk: int, bias: bool) -> None:
    layer, hidden, targets = made_up(torch.float64, bias=bias)
    weights = torch.linspace(-1, 1, 23, dtype=torch.float64)
    wanted = layer(hidden).log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
    parts = [hidden, *layer.parameters()]
    expected = torch.autograd.grad((wanted * weights).sum(), parts)
    found, _ = choose(layer, hidden, targets, chunk)
    gradients = torch.autograd.grad((found * weights).sum(), parts)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-13)
    for left, right in zip(gradients, expected, strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-12)


def test_the_entropy_is_that_of_the_distribution() -> None:
    layer, hidden, targets = made_up(torch.float64)
    _, entropies = choose(layer, hidden, targets, 5)
    reference = torch.distributions.Categorical(logits=layer(hidden)).entropy()
    assert torch.allclose(entropies, reference)
    assert not entropies.requires_grad


def test_a_bfloat16_head_is_scored_and_summed_in_float32() -> None:
    layer, hidden, targets = made_up(torch.bfloat16)
    logprobs, _ = choose(layer, hidden, targets)
    assert logprobs.dtype == torch.float32
    whole, *_ = torch.autograd.grad(logprobs.sum(), [layer.weight])
    (chunked,) = torch.autograd.grad(choose(layer, hidden, targets, 1)[0].sum(), [layer.weight])
    # 23 sums of bfloat16 parts would be off by more than one last bit.
    assert chunked.dtype == torch.bfloat16
    assert float((chunked - whole).abs().max()) <= 2**-7 * float(whole.abs().max())


def test_no_more_than_a_chunk_of_logits_exists_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden, targets = made_up(torch.float32)
    widths: list[int] = []
    linear = head_module.functional.linear

    def counted(values: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        widths.append(len(values))
        return linear(values, *rest)

    monkeypatch.setattr(head_module.functional, "linear", counted)
    choose(layer, hidden, targets, 7)[0].sum().backward()
    assert widths == [7, 7, 7, 2] * 2
