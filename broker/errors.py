"""The error model of an episode: one class per boundary.

Vocabulary. An *outcome* is data: a wrong answer, an exhausted budget, a tool error, a crashed program. An
*error* is an exception: it means that a boundary broke and that nothing may be concluded from the episode.

Classification. `HarnessError` is the program's own fault; the episode keeps its place with reward 0 and the
program is not eligible (SEL-08). `BudgetExhausted` is an outcome with a reason. `ToolError` is what the
program sees as an observation. `SandboxLost`, `ModelUnavailable` and `GraderLost` are ours (`OURS`): retried,
then the prompt group is masked and counted (architecture, decision 5), never scored 0. `PromptRefused` is how
a client of a chat endpoint says that the messages are at fault; the episode makes it a `HarnessError`.

Capture. Only `broker.episode` turns the first three into records; ours always leave it.
"""

from typing import Final

from verifier.errors import GraderLost


class HarnessError(Exception):
    """The program crashed, broke the protocol or forged provenance. `kind` is one of those three words."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ToolError(Exception):
    """A tool call failed inside the sandbox; its text becomes an observation."""


class BudgetExhausted(Exception):
    """A budget of HOST-03 ran out. `reason` is a `StopReason` value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SandboxLost(Exception):
    """A sandbox could not be started, or vanished for a reason that is not the program's."""


class ModelUnavailable(Exception):
    """The task model's endpoint is down, or answered something that cannot be an episode's data."""


class ServiceRefused(ModelUnavailable):
    """An inference service that another try would not bring up: something must be set otherwise first."""


class PromptRefused(ValueError):
    """A chat endpoint that works refuses these messages, as a chat template may: the program's own fault."""


OURS: Final = (SandboxLost, ModelUnavailable, GraderLost)
"""Faults of the host: nothing may be concluded from the episode."""
