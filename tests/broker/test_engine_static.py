"""Decode steps of fixed shape give what the plain path gives; graphs are dropped with what they read."""

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from broker.engine.engine import EmbeddedEngine
from broker.engine.norms import find_norms, replaced
from broker.engine.plan import NewPrompt, Span, plan_step
from broker.engine.prefill import group_spans
from broker.engine.sampling import draw, draw_on_device
from broker.engine.slots import SlotAttention, SlotStore
from broker.engine.static import Burst, StaticAttention, StaticDecode
from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling
from tests.fixtures.tiny_llama import (
    STOP,
    VOCABULARY,
    log_probabilities,
    plain_model,
    write_tiny_llama,
)

LIKE = torch.zeros(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


class Replayed:
    """Stands in for a captured graph where there is no GPU: the same step over the same memory."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._step()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    """Every engine built in the test captures; what it captured."""
    made: list[Replayed] = []

    def capture(decode: Any, rows: int, length: int) -> Replayed:
        # Bound to the buffer of this moment, as a graph is to its addresses.
        values = decode._store.values

        def step() -> None:
            assert decode._store.values is values, "a graph ran over a buffer that is gone"
            decode._compute(rows, length)

        made.append(Replayed(step))
        return made[-1]

    start = StaticDecode.__init__

    def capturing(decode: Any, *given: Any, **named: Any) -> None:
        start(decode, *given, **named)
        decode._capturing = True

    monkeypatch.setattr(StaticDecode, "__init__", capturing)
    monkeypatch.setattr(StaticDecode, "_capture", capture)
    return made


def _engine(folder: Path, *, slots: int = 8, decode: Any = "static", length: int = 512) -> EmbeddedEngine:
    return EmbeddedEngine(folder, device="cpu", max_batch=slots, max_length=length, decode=decode)


def _prompt(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(8, VOCABULARY, (length,), generator=generator).tolist())


def _answers(
    engine: EmbeddedEngine, requests: Sequence[tuple[tuple[int, ...], Sampling]]
) -> list[Completion]:
    futures = [engine.submit(*request) for request in requests]
    return [future.result(timeout=60) for future in futures]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("slots", [3, 8, 21])
def test_steps_of_fixed_shape_give_the_tokens_and_log_probabilities_of_the_plain_path(
    folder: Path, temperature: float, slots: int
) -> None:
    requests = [
        (
            _prompt(seed, 3 + 11 * (seed % 7)),
            Sampling(temperature=temperature, seed=seed, max_tokens=1 + 5 * seed),
        )
        for seed in range(24)
    ]
    plain, static = _engine(folder, slots=slots, decode="plain"), _engine(folder, slots=slots)
    try:
        for one, other in zip(_answers(plain, requests), _answers(static, requests), strict=True):
            assert one.token_ids == other.token_ids
            assert one.finish_reason == other.finish_reason
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        for name in ("generated_tokens", "prompt_tokens"):
            assert plain.stats()[name] == static.stats()[name]
    finally:
        plain.close()
        static.close()


def test_what_follows_a_stop_token_inside_a_burst_never_happened(folder: Path) -> None:
    engine = _engine(folder)
    try:
        hot = [
            (_prompt(seed, 20), Sampling(temperature=100.0, seed=seed, max_tokens=60)) for seed in range(40)
        ]
        completions = _answers(engine, hot)
        ends = {len(each.token_ids) % 4 for each in completions if each.finish_reason == "stop"}
        assert ends == {0, 1, 2, 3}, "stops at every place of a burst"
        assert all(STOP not in each.token_ids[:-1] for each in completions)
        assert engine.stats()["generated_tokens"] == sum(len(each.token_ids) for each in completions)
    finally:
        engine.close()


def test_graphs_stay_over_a_pause_and_compute_with_the_weights_as_they_are(
    folder: Path, graphs: list[Replayed]
) -> None:
    engine = _engine(folder)
    request = (_prompt(1, 40), Sampling(temperature=1.0, seed=4, max_tokens=30))
    try:
        old = _answers(engine, [request])[0]
        captured = len(graphs)
        assert captured == engine.stats()["graphs"] > 0
        engine.pause()
        with torch.no_grad():
            for parameter in engine.model.parameters():
                parameter.mul_(torch.linspace(0.5, 1.5, parameter.shape[-1]))
        engine.resume()
        new = _answers(engine, [request])[0]
        assert new.token_ids != old.token_ids
        assert len(graphs) == captured
        assert all(graph.replays > 10 for graph in graphs)
        scores = log_probabilities(engine.model, list(request[0]), list(new.token_ids))
        assert new.logprobs == pytest.approx(scores, abs=1e-4)
    finally:
        engine.close()


def test_a_buffer_that_grew_has_graphs_of_its_own(folder: Path, graphs: list[Replayed]) -> None:
    engine = _engine(folder)
    try:
        for length in (20, 300, 20):
            request = (_prompt(length, length), Sampling(temperature=0.0, seed=0, max_tokens=24))
            completion = _answers(engine, [request])[0]
            scores = log_probabilities(engine.model, list(request[0]), list(completion.token_ids))
            assert completion.logprobs == pytest.approx(scores, abs=1e-4)
        assert len(graphs) == 3, "one before the growth, one for each length after it"
        assert engine.stats()["graphs"] == 2
    finally:
        engine.close()


def test_a_large_buffer_is_given_back_while_paused(
    folder: Path, graphs: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.engine.engine._KEPT_BYTES", 1000)
    engine = _engine(folder)
    try:
        request = (_prompt(2, 30), Sampling(temperature=0.0, seed=0, max_tokens=12))
        first = _answers(engine, [request])[0]
        buffer = weakref.ref(engine._slots.values)
        engine.pause()
        assert engine._slots.nbytes == 0
        assert engine.stats()["graphs"] == 0
        graphs.clear()  # the stand-ins hold it too
        gc.collect()
        assert buffer() is None
        engine.resume()
        assert _answers(engine, [request])[0].token_ids == first.token_ids
        assert len(graphs) == 1
    finally:
        engine.close()


def test_a_device_that_cannot_capture_the_model_serves_it_all_the_same(
    folder: Path, graphs: list[Replayed], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore words")

    monkeypatch.setattr(StaticDecode, "_capture", refuse)
    engine, plain = _engine(folder), _engine(folder, decode="plain")
    try:
        request = (_prompt(3, 30), Sampling(temperature=1.0, seed=8, max_tokens=25))
        with caplog.at_level(logging.WARNING):
            assert _answers(engine, [request])[0].token_ids == _answers(plain, [request])[0].token_ids
        assert [record.getMessage() for record in caplog.records] == [
            "decode steps run without CUDA graphs, several times slower: "
            "operation not permitted when stream is capturing"
        ]
        assert engine.stats()["graphs"] == 0
    finally:
        engine.close()
        plain.close()


def test_weights_that_diverged_fail_the_requests_and_not_the_engine(folder: Path) -> None:
    engine = _engine(folder)
    request = (_prompt(4, 30), Sampling(temperature=1.0, seed=0, max_tokens=40))
    try:
        good = _answers(engine, [request])[0]
        engine.pause()
        kept = engine.model.get_input_embeddings().weight.detach().clone()
        decode = engine._static
        assert decode is not None
        # A prompt's own pass would meet the weights first, so the steps are called by themselves.
        with torch.inference_mode():
            engine.model.get_input_embeddings().weight.fill_(float("nan"))
            engine._slots.reserve(64, 0)
            for temperature in (0.0, 1.0):
                with pytest.raises(ArithmeticError, match="diverged"):
                    decode.run(Burst([5], [3], [temperature], [[0.5], [0.5]]))
        with torch.no_grad():
            engine.model.get_input_embeddings().weight.copy_(kept)
        engine._slots.release()
        engine.resume()
        assert _answers(engine, [request])[0].token_ids == good.token_ids
    finally:
        engine.close()


def test_a_failed_burst_fails_its_requests_and_not_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(folder)
    try:
        with monkeypatch.context() as patched:

            def fail(*_: object) -> None:
                raise RuntimeError("no memory")

            patched.setattr(StaticDecode, "run", fail)
            with pytest.raises(ModelUnavailable, match="no memory"):
                _answers(engine, [(_prompt(0, 10), Sampling(temperature=0, seed=0, max_tokens=9))])
        assert _answers(engine, [(_prompt(0, 10), Sampling(temperature=0, seed=0, max_tokens=9))])
    finally:
        engine.close()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.5]), min_size=1, max_size=6),
)
def test_a_draw_on_the_device_is_the_draw_of_the_host(seed: int, temperatures: list[float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(len(temperatures), 50, generator=generator)
    uniforms = torch.rand(len(temperatures), generator=generator)
    tokens, logprobs = draw_on_device(logits, torch.tensor(temperatures), uniforms)
    expected = draw(logits, temperatures, uniforms.tolist())
    assert tokens.tolist() == expected[0]
    assert logprobs.tolist() == pytest.approx(expected[1], abs=1e-6)


def test_logits_that_are_no_numbers_never_index_past_the_vocabulary() -> None:
    logits = torch.full((2, 9), float("nan"))
    tokens, logprobs = draw_on_device(logits, torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.999]))
    assert all(0 <= token < 9 for token in tokens.tolist())
    assert not torch.isfinite(logprobs).any()


def test_both_products_of_a_fixed_step_are_one_attention() -> None:
    """float32 writes the products out, narrower types take SDPA."""
    torch.manual_seed(0)
    rows, heads, head_dim, length = 5, 2, 16, 32
    cache = torch.randn(1, 2, 6, heads, length, head_dim)
    positions, slots = torch.tensor([0, 3, 31, 17, 8]), torch.arange(rows)
    given = [torch.randn(1, count, rows, head_dim) for count in (6, heads, heads)]
    found = [
        StaticAttention(cache.clone().to(dtype), positions, slots, length)(
            0, *(each.to(dtype) for each in given), 0.25
        ).float()
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert torch.allclose(found[0], found[1], atol=0.05)
    assert not torch.allclose(found[0][0, 0], found[0][0, 1], atol=0.05)


@pytest.mark.parametrize("cached", [0, 9])
def test_prompts_multiplied_together_are_those_multiplied_one_by_one(cached: int) -> None:
    torch.manual_seed(1)
    prompts = [NewPrompt(slot, _prompt(slot, 12 + 9 * slot), cached=cached) for slot in range(5)]
    plan = plan_step([], prompts)
    assert 1 < len(group_spans(plan.spans)) < len(plan.spans)
    found: list[torch.Tensor] = []
    given = [torch.randn(1, count, len(plan.tokens), 16) for count in (6, 2, 2)]
    for batched in (False, True):
        store = SlotStore(1, 5, 2, 16, like=LIKE)
        store.reserve(64, 0)
        store.values.copy_(torch.linspace(-1, 1, store.values.numel()).view_as(store.values))
        attention = SlotAttention(store, plan, shared=0, batched=batched)
        found.append(attention(0, *given, 0.25))
    assert torch.allclose(*found, atol=1e-5)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 300)), max_size=30))
def test_grouped_spans_are_all_spans_and_none_is_padded_to_twice_its_length(
    sizes: list[tuple[int, int]],
) -> None:
    spans = [Span(slot, 0, start, start + tokens) for slot, (tokens, start) in enumerate(sizes)]
    groups = group_spans(spans)
    assert sorted(span.slot for group in groups for span in group) == list(range(len(spans)))
    for group in groups:
        longest = max(span.end - span.start for span in group)
        assert all(longest < 2 * (span.end - span.start) for span in group)


class CountsFromOne(LlamaRMSNorm):
    """A norm of another formula under a like name."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) + hidden_states


def test_only_norms_that_are_the_same_numbers_are_replaced_and_only_for_a_step(folder: Path) -> None:
    model = plain_model(folder)
    total = sum(isinstance(module, LlamaRMSNorm) for module in model.modules())
    model.model.norm.__class__ = CountsFromOne
    norms = find_norms(model)
    assert len(norms) == total - 1
    assert all(module is not model.model.norm for module, _ in norms)
    ids = torch.tensor([_prompt(0, 20)])
    with torch.no_grad():
        before = model(ids).logits
        with replaced(norms):
            inside = model(ids).logits
        assert torch.allclose(before, inside, atol=1e-4)
        with pytest.raises(RuntimeError, match="stopped"), replaced(norms):
            raise RuntimeError("stopped")
        assert torch.equal(model(ids).logits, before)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_replaced_norm_reads_the_weight_as_it_is_now(folder: Path) -> None:
    model = plain_model(folder)
    norms = find_norms(model)
    ids = torch.tensor([_prompt(0, 20)])
    with torch.no_grad():
        for module, _ in norms:
            module.weight.mul_(1.5)
        with replaced(norms):
            inside = model(ids).logits
        assert torch.allclose(inside, model(ids).logits, atol=1e-4)
