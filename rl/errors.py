"""The error model of the outer recursion: one class per boundary.

`TrainingError`: a batch, an update or a training process cannot go on; nothing was published.
`ExportRefused`: an export exists but is not accepted as a model (EXP-02, EXP-03); `reason` is its name.
"""

from typing import Literal

RefusalReason = Literal[
    "manifest",
    "architecture",
    "dtype",
    "tokenizer",
    "chat_template",
    "weights_unreadable",
    "weights_not_finite",
    "weights_equal_base",
    "panel",
    "vllm",
    "coverage",
    "empty_generations",
]


class TrainingError(Exception):
    """The batch, the update or the training process is unusable; the message names the fix."""


class ExportRefused(Exception):
    """An export failed an acceptance check; `reason` names the check, the message the evidence."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(f"export refused ({reason}): {message}")
        self.reason: RefusalReason = reason
        self.detail = message


class EndpointFixed(Exception):
    """A server of the user's stands where the run must have its exports served (HOST-10)."""


class TokenIdsNeeded(Exception):
    """A chat endpoint stands where RL needs an engine that gives token ids (HOST-11)."""
