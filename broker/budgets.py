"""What one episode may use (HOST-03). All limits are configuration; the defaults are the paper's."""

from pydantic import BaseModel, ConfigDict, Field


class Budgets(BaseModel):
    """Limits of one episode. Token counts are those of the task model's tokenizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    context_tokens: int = Field(default=24_576, ge=64)
    """Prompt plus completion of one model call."""
    completion_tokens: int = Field(default=4_096, ge=1)
    """Longest single generation; a completion cut here ends the episode."""
    model_calls: int = Field(default=9, ge=1)
    tool_calls: int = Field(default=9, ge=0)
    tool_response_tokens: int = Field(default=2_048, ge=32)
    """Visible tokens of one tool response."""
    tool_history_tokens: int = Field(default=8_192, ge=32)
    """Visible tokens of all tool responses in one prompt, newest first."""
    tool_seconds: float = Field(default=60.0, gt=0)
    """Wall clock of one Python call."""
    seconds: float = Field(default=900.0, gt=0)
    """Episode clock; waiting in the host's queues and the auxiliary's calls are excluded."""
    user_turns: int = Field(default=1, ge=0)
    """Researcher replies; 0 in RL and evaluation (HOST-08)."""
