"""Draws follow the distribution, name its log-probabilities, and refuse what is not served."""

import itertools

import pytest
import torch

from broker.engine.sampling import SamplingRefused, check_sampling, draw, uniform_stream
from broker.model import Sampling

LOGITS = torch.tensor([[2.0, 1.0, 0.5, float("-inf"), -1.0]])


def test_the_empirical_distribution_is_the_softmax_at_the_temperature() -> None:
    draws = 20_000
    uniforms = list(itertools.islice(uniform_stream(5), draws))
    tokens, logprobs = draw(LOGITS.expand(draws, -1), [0.7] * draws, uniforms)
    expected = torch.softmax(LOGITS[0] / 0.7, dim=-1)
    frequency = torch.bincount(torch.tensor(tokens), minlength=5) / draws
    assert torch.allclose(frequency, expected, atol=0.012)
    assert frequency[3] == 0
    scores = torch.log_softmax(LOGITS[0], dim=-1)
    assert all(
        abs(logprob - float(scores[token])) < 1e-5 for token, logprob in zip(tokens, logprobs, strict=True)
    )


def test_a_token_of_probability_zero_is_never_drawn_even_at_the_last_uniform() -> None:
    last = 1 - 2**-24
    logits = torch.tensor([[0.0, 1.0, float("-inf")], [float("-inf"), 0.0, float("-inf")]])
    assert draw(logits, [1.0, 1.0], [last, last])[0] == [1, 1]
    assert draw(logits, [1.0, 1.0], [0.0, 0.0])[0] == [0, 1]


def test_temperature_zero_takes_the_first_of_the_most_likely() -> None:
    assert draw(torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, 0.0]]), [0.0, 1.0], [0.0, 0.0])[0] == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error_and_never_a_token(temperature: float) -> None:
    with pytest.raises(ArithmeticError, match="diverged"):
        draw(torch.tensor([[0.0, float("nan"), 1.0]]), [temperature], [0.5])


def test_a_stream_is_its_seeds_alone() -> None:
    first = list(itertools.islice(uniform_stream(11), 200))
    assert first == list(itertools.islice(uniform_stream(11), 200))
    assert first != list(itertools.islice(uniform_stream(12), 200))
    assert len(set(first)) > 190


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 5),
        ("presence_penalty", 0.1),
        ("frequency_penalty", 1.0),
        ("repetition_penalty", 1.1),
    ],
)
def test_a_parameter_that_is_not_served_is_refused_by_name(name: str, value: float) -> None:
    sampling = Sampling(temperature=1, seed=0, max_tokens=1)
    check_sampling(sampling)
    with pytest.raises(SamplingRefused, match=name):
        check_sampling(sampling.model_copy(update={name: value}))
