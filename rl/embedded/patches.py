"""Other forward methods on some modules of a model, for as long as a block lasts.

The module is shared with the rollout engine, so what an update replaces it puts back. Must not know why.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]
Patch = tuple[nn.Module, Forward]


@contextmanager
def patched(patches: Sequence[Patch]) -> Generator[None]:
    """Set each module's `forward`; at the end every module has what it had before, whatever happened."""
    before = [(module, module.__dict__.get("forward")) for module, _ in patches]
    for module, forward in patches:
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module, old in reversed(before):
            if old is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = old
