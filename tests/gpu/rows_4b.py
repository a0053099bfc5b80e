"""Rows like those of a real update, made up from a seed: 64 episodes of 1 to 9 calls whose prompts grow."""

import random
from collections.abc import Sequence
from dataclasses import replace

from rl.rows import Row, RowBatch, TrajectoryId


def episodes(
    count: int, *, limit: int, vocabulary: int, seed: int, calls: int = 9, scale: float = 1.0
) -> list[Row]:
    """One row per call; each prompt begins with the whole call before it, as an appending program's does.

    Lengths in tokens: first prompt 600 to 1,500, completions log-normal around 350 up to 4,096, observations
    80 to 700; an episode ends before a row would exceed `limit`. `scale` shrinks all of them for a test.
    """
    draw = random.Random(seed)

    def length(low: float, high: float) -> int:
        return max(1, int(scale * draw.uniform(low, high)))

    def ids(size: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(size))

    rows: list[Row] = []
    for episode in range(count):
        prompt = ids(length(600, 1_500))
        own: list[Row] = []
        for _ in range(draw.randint(1, calls)):
            size = max(1, int(scale * min(4_096.0, draw.lognormvariate(5.86, 0.9))))
            if len(prompt) + size > limit:
                break
            own.append(_row(prompt, ids(size), TrajectoryId(f"task-{episode // 8}", episode % 8)))
            prompt = prompt + own[-1].completion_ids + ids(length(80, 700))
        own[-1] = rewarded(own[-1], float(episode % 2))
        rows += own
    return rows


def of_length(lengths: Sequence[int], *, completion: int, vocabulary: int, seed: int) -> list[Row]:
    """Rows that share nothing, each an episode; every other one is rewarded."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for index, length in enumerate(lengths):
        size = min(completion, length // 2)
        whole = tuple(draw.randrange(vocabulary) for _ in range(length))
        row = _row(whole[:-size], whole[-size:], TrajectoryId(f"task-{index // 8}", index % 8))
        rows.append(rewarded(row, float(index % 2)))
    return rows


def apart(rows: Sequence[Row], *, tokens: int, vocabulary: int, seed: int) -> list[Row]:
    """Rows of the same lengths with ids of their own, each an episode, about `tokens` tokens in all.

    What a program gives that renders its messages anew in each call: no prefix can be shared.
    """
    draw = random.Random(seed)
    chosen: list[Row] = []
    total = 0
    for row in draw.sample(list(rows), len(rows)):
        if total >= tokens:
            break
        chosen.append(row)
        total += len(row.prompt_ids) + len(row.completion_ids)
    return [
        rewarded(
            _row(
                tuple(draw.randrange(vocabulary) for _ in row.prompt_ids),
                tuple(draw.randrange(vocabulary) for _ in row.completion_ids),
                TrajectoryId(f"task-{index // 8}", index % 8),
            ),
            float(index % 2),
        )
        for index, row in enumerate(chosen)
    ]


def batch(rows: Sequence[Row], logprobs: Sequence[Sequence[float]] | None = None) -> RowBatch:
    """A batch; with the given log-probabilities as those of the rollout."""
    if logprobs is not None:
        pairs = zip(rows, logprobs, strict=True)
        rows = [replace(row, rollout_logprobs=tuple(values)) for row, values in pairs]
    return RowBatch(rows=tuple(rows), attempts=8, zero_call_episodes=0, silent_prompts=(), lost_prompts=())


def rewarded(row: Row, reward: float) -> Row:
    """The row as the last of its episode."""
    return replace(row, rewards=(*row.rewards[:-1], reward), is_last=True)


def _row(prompt: tuple[int, ...], completion: tuple[int, ...], trajectory: TrajectoryId) -> Row:
    size = len(completion)
    return Row(
        prompt_ids=prompt,
        completion_ids=completion,
        rollout_logprobs=(-1.0,) * size,
        loss_mask=(1,) * size,
        rewards=(0.0,) * size,
        trajectory=trajectory,
        is_last=False,
    )
