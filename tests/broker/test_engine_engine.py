"""The embedded engine against transformers on the same weights, and against itself in other company."""

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from broker.engine.engine import EmbeddedEngine, RequestRefused
from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling
from tests.fixtures.tiny_llama import STOP, VOCABULARY, log_probabilities, plain_model, write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def engine(folder: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(folder, device="cpu", max_batch=8, max_length=256)
    yield engine
    engine.close()


def _prompt(seed: int, length: int, shared: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    own = torch.randint(8, VOCABULARY, (length,), generator=generator).tolist()
    common = torch.randint(8, VOCABULARY, (shared,), generator=torch.Generator().manual_seed(99)).tolist()
    return (*common, *own)


def _sampling(seed: int = 0, *, temperature: float = 0.0, max_tokens: int = 12) -> Sampling:
    return Sampling(temperature=temperature, seed=seed, max_tokens=max_tokens)


def _together(
    engine: EmbeddedEngine, requests: Sequence[tuple[tuple[int, ...], Sampling]]
) -> list[Completion]:
    """All requests queued before the first step, so that they form one batch."""
    engine.pause()
    futures = [engine.submit(prompt, sampling) for prompt, sampling in requests]
    engine.resume()
    return [future.result(timeout=60) for future in futures]


def _equal(left: Completion, right: Completion) -> None:
    assert left.token_ids == right.token_ids
    assert left.finish_reason == right.finish_reason
    assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


def test_greedy_completions_and_log_probabilities_are_those_of_transformers(
    engine: EmbeddedEngine, folder: Path
) -> None:
    model = plain_model(folder)
    for seed in range(6):
        prompt = _prompt(seed, 5 + 9 * seed)
        completion = engine.submit(prompt, _sampling(max_tokens=16)).result(timeout=60)
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
        assert list(completion.token_ids) == expected[0, len(prompt) :].tolist()
        scores = log_probabilities(model, list(prompt), list(completion.token_ids))
        assert completion.logprobs == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_completion_does_not_depend_on_who_else_is_in_the_batch(folder: Path, temperature: float) -> None:
    requests = [
        # 17 requests in 8 slots: some share 40 tokens or are equal but for the seed, some stand alone.
        (_prompt(seed // 2, 3 + seed, 40 if seed % 3 else 0), _sampling(seed, temperature=temperature))
        for seed in range(16)
    ]
    requests += [(requests[1][0], _sampling(77, temperature=temperature))]
    alone = EmbeddedEngine(folder, device="cpu", max_batch=1, max_length=256, share_prefixes=False)
    crowd = EmbeddedEngine(folder, device="cpu", max_batch=8, max_length=256)
    try:
        single = [alone.submit(*request).result(timeout=60) for request in requests]
        for completion, expected in zip(_together(crowd, requests), single, strict=True):
            _equal(completion, expected)
        # Again, now that the prefix cache knows the prompts, and joining while others run.
        futures = [crowd.submit(*request) for request in reversed(requests)]
        for future, expected in zip(futures, reversed(single), strict=True):
            _equal(future.result(timeout=60), expected)
        assert crowd.stats()["prompt_tokens_reused"] > 500
    finally:
        alone.close()
        crowd.close()


def test_the_trainers_own_forward_on_the_shared_module_gives_the_same_log_probabilities(
    engine: EmbeddedEngine,
) -> None:
    prompt = _prompt(3, 50)
    completion = engine.submit(prompt, _sampling(4, temperature=1.0, max_tokens=30)).result(timeout=60)
    scores = log_probabilities(engine.model, list(prompt), list(completion.token_ids))
    assert completion.logprobs == pytest.approx(scores, abs=1e-4)


def test_the_next_turn_of_an_episode_reuses_prompt_and_completion(
    engine: EmbeddedEngine, folder: Path
) -> None:
    prompt = _prompt(1, 64)
    first = engine.submit(prompt, _sampling(max_tokens=17)).result(timeout=60)
    before = engine.stats()["prompt_tokens_computed"]
    longer = (*prompt, *first.token_ids, *_prompt(2, 5))
    second = engine.submit(longer, _sampling(max_tokens=8)).result(timeout=60)
    assert engine.stats()["prompt_tokens_computed"] - before < 16
    scores = log_probabilities(plain_model(folder), list(longer), list(second.token_ids))
    assert second.logprobs == pytest.approx(scores, abs=1e-4)


def test_a_stop_token_ends_the_completion_and_is_part_of_it(engine: EmbeddedEngine) -> None:
    # So hot that every token is about equally likely.
    requests = [(_prompt(seed, 20), _sampling(seed, temperature=100.0, max_tokens=60)) for seed in range(24)]
    completions = _together(engine, requests)
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert stopped
    for completion in completions:
        assert (completion.token_ids[-1] == STOP) == (completion.finish_reason == "stop")
        assert STOP not in completion.token_ids[:-1]
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 60


def test_pause_waits_for_the_running_and_resume_serves_the_changed_weights(engine: EmbeddedEngine) -> None:
    prompt = _prompt(5, 40)
    old = engine.submit(prompt, _sampling(max_tokens=20)).result(timeout=60)
    running = engine.submit(prompt, _sampling(max_tokens=60))
    while engine.stats()["running"] == 0 and not running.done():
        pass
    engine.pause()
    assert running.done()
    assert running.result().token_ids[:20] == old.token_ids
    queued = engine.submit(prompt, _sampling(max_tokens=20))
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(torch.linspace(0.5, 1.5, parameter.shape[-1]))
    assert not queued.done()
    engine.resume()
    new = queued.result(timeout=60)
    assert new.token_ids != old.token_ids
    scores = log_probabilities(engine.model, list(prompt), list(new.token_ids))
    assert new.logprobs == pytest.approx(scores, abs=1e-4)


def test_loaded_weights_change_the_identity_and_the_completions(
    engine: EmbeddedEngine, folder: Path, tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "other", seed=1)
    prompt, sampling = _prompt(6, 30), _sampling(max_tokens=10)
    before, old = engine.identity, engine.submit(prompt, sampling).result(timeout=60)
    assert engine.load_weights(other) == engine.identity != before
    new = engine.submit(prompt, sampling).result(timeout=60)
    expected = plain_model(other).generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False)
    assert list(new.token_ids) == expected[0, len(prompt) :].tolist()
    assert engine.load_weights(folder) == before
    _equal(engine.submit(prompt, sampling).result(timeout=60), old)


def test_weights_of_another_shape_are_refused_and_the_old_ones_stay(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "wide", intermediate_size=128)
    before = engine.identity
    with pytest.raises(ModelUnavailable, match="do not fit the served model"):
        engine.load_weights(other)
    assert engine.identity == before
    engine.submit(_prompt(1, 4), _sampling(max_tokens=2)).result(timeout=60)


def test_requests_that_can_never_be_served_are_refused_at_once(engine: EmbeddedEngine) -> None:
    with pytest.raises(RequestRefused, match="empty"):
        engine.submit((), _sampling())
    with pytest.raises(RequestRefused, match="250 prompt tokens and max_tokens=12 exceed the engine's 256"):
        engine.submit(_prompt(0, 250), _sampling())
    with pytest.raises(RequestRefused, match="outside 0"):
        engine.submit((VOCABULARY,), _sampling())


def test_a_cancelled_request_gives_its_slot_back(folder: Path) -> None:
    engine = EmbeddedEngine(folder, device="cpu", max_batch=1, max_length=512)
    try:
        long = engine.submit(_prompt(0, 10), _sampling(max_tokens=500))
        short = engine.submit(_prompt(1, 10), _sampling(max_tokens=2))
        long.cancel()
        assert len(short.result(timeout=60).token_ids) <= 2
        assert engine.stats()["generated_tokens"] < 400
    finally:
        engine.close()


def test_a_failed_pass_fails_its_requests_and_not_the_engine(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            "broker.engine.engine.draw", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory"))
        )
        for future in [engine.submit(_prompt(0, 50), _sampling(seed)) for seed in range(3)]:
            with pytest.raises(ModelUnavailable, match="no memory"):
                future.result(timeout=60)
    assert engine.submit(_prompt(0, 10), _sampling()).result(timeout=60).token_ids


def test_memory_that_a_shorter_sequence_leaves_unused_never_reaches_a_completion(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EmbeddedEngine(folder, device="cpu", max_batch=8, max_length=256)
    # What uninitialised memory may hold, made certain.
    monkeypatch.setattr(torch, "empty", lambda *size, **how: torch.zeros(*size, **how) + float("nan"))
    try:
        requests = [(_prompt(0, 5 + 30 * seed), _sampling(seed, temperature=1.0)) for seed in range(4)]
        for completion in _together(engine, requests):
            assert all(torch.isfinite(torch.tensor(completion.logprobs)))
    finally:
        engine.close()


def _fail(*_: object) -> None:
    raise RuntimeError("no memory")


def test_close_fails_what_waits_and_ends_the_thread(folder: Path) -> None:
    engine = EmbeddedEngine(folder, device="cpu", max_length=256)
    engine.pause()
    waiting = engine.submit(_prompt(0, 10), _sampling())
    engine.close()
    engine.close()
    with pytest.raises(ModelUnavailable, match="closed"):
        waiting.result(timeout=10)
    with pytest.raises(ModelUnavailable, match="closed"):
        engine.submit(_prompt(0, 10), _sampling())
    assert not any(thread.name == "embedded-engine" and thread.is_alive() for thread in threading.enumerate())


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "sliding_window": 16},
        {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "layer_types": ["full_attention", "sliding_attention"],
        },
        {"model_type": "mamba"},
    ],
    ids=lambda changes: str(changes["model_type"]),
)
def test_a_model_without_plain_full_attention_is_refused_with_the_alternative(
    folder: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    other = write_tiny_llama(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelUnavailable, match="serves full-attention models; use inference=vllm"):
        EmbeddedEngine(other, device="cpu")


def test_cuda_where_there_is_none_is_one_clear_line(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ModelUnavailable, match="no CUDA device"):
        EmbeddedEngine(folder, device="cuda")


async def test_it_is_a_task_model_for_callers_in_the_same_process(engine: EmbeddedEngine) -> None:
    completion = await engine.complete(_prompt(0, 10), _sampling(max_tokens=3))
    assert len(completion.logprobs) == len(completion.token_ids)
    with pytest.raises(ModelUnavailable, match="empty"):
        await engine.complete((), _sampling())
