"""Small rows, episodes and models that the tests of the outer recursion share."""

from collections.abc import Sequence

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from broker.model import Completion, Sampling
from broker.record import EpisodeRecord, GradedEpisode, ModelCall, StopReason
from rl.embedded.scoring import row_logprobs
from rl.rows import Row, RowBatch, TrajectoryId
from verifier.task import NOT_SUBMITTED, Verdict

VOCABULARY = 64
RIGHT = Verdict(format_valid=True, correct=True, answer="A", reason="equal")
WRONG = Verdict(format_valid=True, correct=False, answer="B", reason="other option")


def tiny_llama(seed: int = 0, vocabulary: int = VOCABULARY) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def tiny_hybrid(seed: int = 0, vocabulary: int = VOCABULARY) -> Qwen3_5ForCausalLM:
    """Qwen3.5 in small: three gated delta nets to one full attention, twice as many value as key heads."""
    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Qwen3_5ForCausalLM(config).eval()


def row(
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    trajectory: tuple[str, int] = ("t", 0),
    reward: float = 0.0,
    logprobs: Sequence[float] | None = None,
    mask: Sequence[int] | None = None,
    is_last: bool = True,
) -> Row:
    size = len(completion)
    return Row(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        rollout_logprobs=tuple(logprobs if logprobs is not None else [-1.0] * size),
        loss_mask=tuple(mask if mask is not None else [1] * size),
        rewards=(0.0,) * (size - 1) + (reward,),
        trajectory=TrajectoryId(*trajectory),
        is_last=is_last,
    )


def batch_of(rows: list[Row], attempts: int) -> RowBatch:
    return RowBatch(
        rows=tuple(rows), attempts=attempts, zero_call_episodes=0, silent_prompts=(), lost_prompts=()
    )


def sampled(model: PreTrainedModel, rows: list[Row]) -> list[Row]:
    """The rows with the model's own log-probabilities as rollout log-probabilities."""
    with torch.no_grad():
        values = [tuple(row_logprobs(model, item).tolist()) for item in rows]
    return [
        Row(**{**item.__dict__, "rollout_logprobs": value}) for item, value in zip(rows, values, strict=True)
    ]


def two_call_batch(model: PreTrainedModel) -> RowBatch:
    rows = [
        row([1, 2, 3], [4, 5], trajectory=("a", 0), is_last=False),
        row([1, 2, 3, 4, 5, 9], [6, 7, 8], trajectory=("a", 0), reward=1.0),
        row([1, 2, 3], [5], trajectory=("a", 1)),
        row([1, 2, 7], [4, 4], trajectory=("b", 0), reward=1.0),
        row([0], [0], trajectory=("b", 1), mask=[0]),
        row([1, 2, 8], [4, 9], trajectory=("c", 0), reward=1.0),
        row([1, 2, 8], [4, 3], trajectory=("c", 1), reward=1.0),
    ]
    return batch_of(sampled(model, rows), 2)


def parameters(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def call(
    index: int, prompt: Sequence[int], completion: Sequence[int], logprobs: Sequence[float]
) -> ModelCall:
    return ModelCall(
        index=index,
        messages=(),
        prompt_ids=tuple(prompt),
        completion=Completion(token_ids=tuple(completion), logprobs=tuple(logprobs), finish_reason="stop"),
        text="",
        sampling=Sampling(temperature=1.0, seed=0, max_tokens=64),
        seconds=0.0,
    )


def episode(
    task_id: str, repetition: int, calls: Sequence[ModelCall], verdict: Verdict = NOT_SUBMITTED
) -> GradedEpisode:
    record = EpisodeRecord(
        task_id=task_id,
        harness="sha256:" + "0" * 64,
        mode="rl",
        repetition=repetition,
        model_calls=tuple(calls),
        tool_calls=(),
        submissions=(),
        stop_reason=StopReason.FIRST_ANSWER if calls else StopReason.CANDIDATE_ERROR,
        seconds=0.1,
    )
    return GradedEpisode(record=record, verdict=verdict)
