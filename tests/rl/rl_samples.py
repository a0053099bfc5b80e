"""Small rows, episodes and models that the tests of the outer recursion share."""

from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from broker.model import Completion, Sampling
from broker.record import EpisodeRecord, GradedEpisode, ModelCall, StopReason
from rl.rows import Row, TrajectoryId
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
