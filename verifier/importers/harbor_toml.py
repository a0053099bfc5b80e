"""The part of Harbor's task.toml that decides what a task means here, versions 1.0 to 1.4.

Keys that change neither a verdict nor what a task needs are passed over; what no sandbox here gives is named
by `requires`. Must not know how a task is imported.
"""

from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Package(_Table):
    name: str = ""
    description: str = ""


class Agent(_Table):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: str | None = None


class Verifier(_Table):
    timeout_sec: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    env: dict[str, str] = Field(default_factory=dict[str, str])
    user: str | int | None = None
    network_mode: str | None = None
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None
    collect: tuple[dict[str, Any], ...] = ()


class Environment(_Table):
    network_mode: Literal["public", "no-network", "allowlist"] | None = None
    allow_internet: bool | None = None
    """Deprecated by Harbor; says the same."""
    docker_image: str | None = None
    os: str = "linux"
    memory_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: tuple[dict[str, Any], ...] = ()
    env: dict[str, str] = Field(default_factory=dict[str, str])
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None

    @property
    def network(self) -> str:
        """Harbor's default is a public network."""
        if self.network_mode is not None:
            return self.network_mode
        return "no-network" if self.allow_internet is False else "public"


class HarborStep(_Table):
    name: str = Field(min_length=1)
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None

    def gate(self) -> dict[str, float]:
        """What the next step asks of this one's rewards, by key."""
        if self.min_reward is None:
            return {}
        return self.min_reward if isinstance(self.min_reward, dict) else {"reward": self.min_reward}


class HarborToml(_Table):
    """One task.toml."""

    schema_version: str = Field(default="1.4", validation_alias=AliasChoices("schema_version", "version"))
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: tuple[HarborStep, ...] | None = None

    @field_validator("schema_version")
    @classmethod
    def _known_version(cls, value: str) -> str:
        if value not in _VERSIONS:
            raise ValueError(f"version {value!r} is none of {', '.join(_VERSIONS)}")
        return value

    def requires(self) -> set[str]:
        """What the task asks for that no sandbox here gives."""
        asked = self.environment
        phases = (self.agent, self.verifier, *(p for s in self.steps or () for p in (s.agent, s.verifier)))
        modes = {asked.network, *(phase.network_mode for phase in phases if phase.network_mode)}
        checks = (self.verifier, *(step.verifier for step in self.steps or ()))
        found = {
            "network": bool(modes - {"no-network"}),
            "gpu": bool(asked.gpus) or asked.tpu is not None,
            "mcp": bool(asked.mcp_servers),
            "windows": asked.os != "linux",
            "user": any(phase.user is not None for phase in phases),
            "services": any(
                check.environment is not None or check.environment_mode == "separate" or check.collect
                for check in checks
            ),
            "image": asked.docker_image is not None or asked.skills_dir is not None,
        }
        return {name for name, needed in found.items() if needed}
