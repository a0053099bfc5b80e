"""What one forward pass computes: one token of each running sequence, of new prompts what nobody has yet.

All tokens of a pass lie flat in one row. Prompts are sorted, so each shares its longest common prefix with
the one before it; a prompt computes only the tokens after that prefix and after what the prefix cache already
put in its slot. A token that two prompts share is computed once and stored in both slots. Pure Python; must
not know torch or the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NewPrompt:
    """A prompt about to be computed. Positions [0, cached) of its slot are already filled."""

    slot: int
    tokens: tuple[int, ...]
    cached: int
    """At most len(tokens) - 1: the last position is always computed, for its logits."""


@dataclass(frozen=True)
class Span:
    """Consecutive flat tokens computed for one slot; they attend to positions [0, end) of that slot."""

    slot: int
    flat: int
    """Flat index of the first token."""
    start: int
    """Position of the first token in its sequence."""
    end: int


@dataclass
class StepPlan:
    """The flat tokens of a pass, where their keys and values go, and which outputs need logits."""

    tokens: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    write_slots: list[int] = field(default_factory=list[int])
    write_positions: list[int] = field(default_factory=list[int])
    write_sources: list[int] = field(default_factory=list[int])
    """Flat index whose key and value go to (write_slots, write_positions); one token may go to many slots."""
    running: int = 0
    """The first `running` flat tokens are the next tokens of slots 0 .. running - 1."""
    spans: list[Span] = field(default_factory=list[Span])
    logit_rows: list[int] = field(default_factory=list[int])
    """Flat index of the last position of each running slot, then of each new prompt in the order given."""

    def add(self, token: int, position: int) -> int:
        self.tokens.append(token)
        self.positions.append(position)
        return len(self.tokens) - 1

    def write(self, slot: int, position: int, source: int) -> None:
        self.write_slots.append(slot)
        self.write_positions.append(position)
        self.write_sources.append(source)


def plan_step(
    running: Sequence[tuple[int, int]], prompts: Sequence[NewPrompt], *, share: bool = True
) -> StepPlan:
    """Plan one pass. `running[i]` is (last token, its position) of slot i.

    Returns flat lists; `share=False` computes every prompt on its own (for measurements).
    """
    plan = StepPlan(running=len(running))
    for slot, (token, position) in enumerate(running):
        source = plan.add(token, position)
        plan.write(slot, position, source)
        plan.logit_rows.append(source)
    last_rows = [0] * len(prompts)
    previous: tuple[int, ...] = ()
    computed: dict[
        int, int
    ] = {}  # position -> flat index, for the tokens of `previous` that this pass computes
    for index in sorted(range(len(prompts)), key=lambda i: prompts[i].tokens):
        prompt = prompts[index]
        common = common_prefix(previous, prompt.tokens) if share else 0
        computed = {position: flat for position, flat in computed.items() if position < common}
        _add_prompt(plan, prompt, computed)
        last_rows[index] = computed[len(prompt.tokens) - 1]
        previous = prompt.tokens
    plan.logit_rows.extend(last_rows)
    return plan


def _add_prompt(plan: StepPlan, prompt: NewPrompt, computed: dict[int, int]) -> None:
    """Add what `computed` lacks of the prompt's uncached tokens, and enter it there."""
    start: int | None = None
    for position in range(prompt.cached, len(prompt.tokens)):
        if position not in computed:
            computed[position] = plan.add(prompt.tokens[position], position)
            start = position if start is None else start
        plan.write(prompt.slot, position, computed[position])
    if start is not None:
        plan.spans.append(Span(prompt.slot, computed[start], start, len(prompt.tokens)))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of equal leading tokens."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    low, high = 0, shorter  # invariant: left[:low] == right[:low] and left[:high] != right[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
