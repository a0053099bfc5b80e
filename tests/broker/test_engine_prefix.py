"""The prefix cache gives back what was put in, for equal prefixes only, within its size."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.engine.plan import common_prefix
from broker.engine.prefix import BLOCK, PrefixCache

LAYERS, HEADS, HEAD_DIM = 2, 3, 4
BLOCK_BYTES = LAYERS * 2 * HEADS * BLOCK * HEAD_DIM * 4


def _cache(blocks: int) -> PrefixCache:
    return PrefixCache(LAYERS, HEADS, HEAD_DIM, capacity_bytes=blocks * BLOCK_BYTES, like=torch.zeros(1))


def _values(tokens: list[int]) -> torch.Tensor:
    """Keys and values that depend on the whole prefix, as a model's do."""
    running = torch.tensor(tokens, dtype=torch.float32).cumsum(0) * 10 + torch.tensor(tokens)
    return running[None, None, None, :, None].expand(LAYERS, 2, HEADS, len(tokens), HEAD_DIM).contiguous()


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=4 * BLOCK)


@given(kept=st.lists(TOKENS, max_size=5), asked=TOKENS)
@settings(max_examples=100, deadline=None)
def test_the_longest_known_run_of_full_blocks_comes_back_unchanged(
    kept: list[list[int]], asked: list[int]
) -> None:
    cache = _cache(1000)
    for tokens in kept:
        cache.insert(tokens, _values(tokens))
    known = (
        max((common_prefix(t[: len(t) // BLOCK * BLOCK], asked) for t in kept), default=0) // BLOCK * BLOCK
    )
    found = cache.match(asked)
    if known == 0:
        assert found is None
    else:
        assert found is not None
        assert torch.equal(found, _values(asked)[..., :known, :])


@given(kept=st.lists(TOKENS, min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_it_never_grows_past_its_size_and_what_remains_is_right(kept: list[list[int]]) -> None:
    cache = _cache(5)
    for tokens in kept:
        cache.insert(tokens, _values(tokens))
        assert len(cache) <= 5
    for tokens in kept:
        found = cache.match(tokens)
        if found is not None:
            assert torch.equal(found, _values(tokens)[..., : found.shape[3], :])


def test_the_least_recently_used_blocks_go_first() -> None:
    cache = _cache(4)
    old, used, new = ([n] * (2 * BLOCK) for n in (1, 2, 3))
    cache.insert(old, _values(old))
    cache.insert(used, _values(used))
    cache.match(used)
    cache.insert(new, _values(new))
    assert cache.match(old) is None
    assert cache.match(used) is not None
    assert cache.match(new) is not None


def test_size_zero_is_off_and_clear_forgets() -> None:
    tokens = [1] * (3 * BLOCK)
    off = _cache(0)
    off.insert(tokens, _values(tokens))
    assert off.match(tokens) is None
    cache = _cache(10)
    cache.insert(tokens, _values(tokens))
    cache.clear()
    assert cache.match(tokens) is None
