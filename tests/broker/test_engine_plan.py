"""The plan of a forward pass, checked token by token."""

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.engine.plan import NewPrompt, StepPlan, common_prefix, plan_step

# A small alphabet, so that prompts share prefixes often.
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=8)
BLOCK = 3


def _with_cache(tokens: list[tuple[int, ...]], cached_prompts: list[tuple[int, ...]]) -> list[NewPrompt]:
    """Prompts for slots 2, 3, ... as a block-wise prefix cache that knows some prompts would fill them."""
    prompts: list[NewPrompt] = []
    for slot, prompt in enumerate(tokens, start=2):
        known = max((common_prefix(other, prompt[:-1]) for other in cached_prompts), default=0)
        prompts.append(NewPrompt(slot, prompt, cached=known // BLOCK * BLOCK))
    return prompts


@given(tokens=PROMPTS, cached=PROMPTS)
@settings(max_examples=150, deadline=None)
def test_every_uncached_position_of_every_prompt_is_written_once_from_an_equal_prefix(
    tokens: list[tuple[int, ...]], cached: list[tuple[int, ...]]
) -> None:
    prompts = _with_cache(tokens, cached)
    plan = plan_step([(9, 4), (8, 6)], prompts)
    written = {
        (slot, position): source
        for slot, position, source in zip(
            plan.write_slots, plan.write_positions, plan.write_sources, strict=True
        )
    }
    assert len(written) == len(plan.write_slots)
    computed_for = _prefix_of_each_flat_token(plan, prompts)
    for prompt in prompts:
        for position in range(prompt.cached, len(prompt.tokens)):
            source = written[prompt.slot, position]
            assert computed_for[source] == prompt.tokens[: position + 1]
            assert (plan.tokens[source], plan.positions[source]) == (prompt.tokens[position], position)
    assert plan.tokens[:2] == [9, 8]
    assert plan.logit_rows[:2] == [0, 1]
    for prompt, row in zip(prompts, plan.logit_rows[2:], strict=True):
        assert computed_for[row] == prompt.tokens


def _prefix_of_each_flat_token(plan: StepPlan, prompts: list[NewPrompt]) -> dict[int, tuple[int, ...]]:
    by_slot = {prompt.slot: prompt.tokens for prompt in prompts}
    return {
        span.flat + offset: by_slot[span.slot][: span.start + offset + 1]
        for span in plan.spans
        for offset in range(span.end - span.start)
    }


@given(tokens=PROMPTS)
@settings(max_examples=100, deadline=None)
def test_a_token_that_prompts_share_is_computed_once(tokens: list[tuple[int, ...]]) -> None:
    plan = plan_step([], [NewPrompt(slot, prompt, cached=0) for slot, prompt in enumerate(tokens)])
    prefixes = {prompt[: end + 1] for prompt in tokens for end in range(len(prompt))}
    assert len(plan.tokens) == len(prefixes)


def test_without_sharing_each_prompt_is_computed_in_full() -> None:
    prompts = [NewPrompt(slot, (1, 2, 3), cached=0) for slot in range(4)]
    assert len(plan_step([], prompts, share=False).tokens) == 12
    assert len(plan_step([], prompts).tokens) == 3


@given(left=st.lists(st.integers(0, 1)), right=st.lists(st.integers(0, 1)))
@settings(max_examples=100, deadline=None)
def test_the_common_prefix_is_the_longest_one(left: list[int], right: list[int]) -> None:
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert left[: length + 1] != right[: length + 1] or length == min(len(left), len(right))
