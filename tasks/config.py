"""The configuration of a run as frozen models: what the Prefect form, a notebook and Hydra all fill in.

Unknown fields are refused everywhere, so that a misspelt setting never silently runs the default.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from broker.budgets import Budgets
from broker.chat_model import Dialect, LengthParameter
from broker.endpoint import EndpointSettings
from broker.judge import JudgeSettings
from broker.vllm_settings import VllmSettings
from catalog.digest import digest_json
from harness_lab.manner import ResponseFormat
from rl.contract import RlContract, refuse_chat_model
from rl.errors import EndpointFixed
from rl.skyrl.settings import SkyrlSettings


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScheduleConfig(_Config):
    """How many of everything (SCHED-03)."""

    cycles: int = Field(default=3, ge=1)
    steps: int = Field(default=3, ge=1)
    """Harness steps a phase."""
    interactions: int = Field(default=16, ge=2)
    """Train interactions a step."""
    candidates: int = Field(default=3, ge=1)
    preflight_tasks: int = Field(default=4, ge=1)
    """How many Train tasks are tried to find the designated preflight list (SEL-01)."""
    aa_comparison: bool = False
    """Evaluate the parent twice at each step, beside the rule: the noise floor, for V more episodes."""
    trigger: Literal["always_debug", "improvement"] = "always_debug"
    """`improvement` hands over to RL only if the program changed and Test gained (SCHED-06)."""
    protocol: Literal["selection", "adaptation"] = "selection"
    """Of `mode=harness`. `adaptation`: `steps` batches of `interactions` conversations, one update a batch;
    the best program on them is compared with the initial one on Val (SCHED-10)."""
    pass_attempts: int = Field(default=8, ge=0)
    """Of `mode=model`: sampled attempts of every Test task, before and after, for pass@k; 0 is off."""


class ModelConfig(_Config):
    """The task model and the service that answers for it."""

    name: str
    """A model folder, or `smollm2-135m-instruct` for the packaged one. For `chat` only its tokenizer is read:
    it counts for every budget; tokenizer.json is enough."""
    inference: Literal["embedded", "endpoint", "command", "vllm", "chat"] = "embedded"
    """`embedded`: our engine in a child process. `endpoint`: a server that the user runs. `vllm`: vLLM,
    started by the run. `command`: another server that the run starts; it is given `--model DIR --port 0
    --ready-file FILE`. `chat`: any chat endpoint, without token ids: evaluation and harness learning, never
    RL (HOST-11)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=0, ge=0)
    """Torch threads; 0 leaves the choice to torch."""
    max_batch: int = Field(default=32, ge=1)
    base_url: str | None = None
    served_name: str | None = None
    command: tuple[str, ...] = ()
    vllm: VllmSettings = VllmSettings()
    """Of `vllm`; it generates `max_batch` sequences at once."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Of an endpoint: the environment variable that holds its key. The key itself is never recorded."""
    dialect: Dialect = "openai"
    """Of a chat endpoint: `vllm` also takes top-k, min-p, a repetition penalty, and thinking off."""
    length_parameter: LengthParameter = "max_tokens"
    """Of a chat endpoint: newer OpenAI models want `max_completion_tokens`."""
    endpoint: EndpointSettings = EndpointSettings()
    """Time-out, retries, rate limit and prices."""
    scripted: bool = False
    """The command is a scripted test server, whose answers do not depend on weights: RL rollouts may come
    from it. Real rollouts come from the embedded engine, which shares the trainer's weights."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.inference == "endpoint" and not self.base_url:
            raise ValueError("model.inference=endpoint needs model.base_url, e.g. http://127.0.0.1:8000")
        if self.inference == "chat" and not (self.base_url and self.served_name):
            raise ValueError(
                "model.inference=chat needs model.base_url and model.served_name, the name that the endpoint "
                "knows the model by"
            )
        if self.inference == "command" and not self.command:
            raise ValueError("model.inference=command needs model.command, the server's command line")
        return self


class AuxiliaryConfig(_Config):
    """The fixed second model: feedback, interpretation, proposals (SCHED-07)."""

    improver: Literal["rules", "llm", "skills"] = "rules"
    """`rules`: no second model. `llm`: a chat model writes whole programs. `skills`: it edits one instruction
    or one scoped skill at a time, and the first program is a skill file (PROP-09)."""
    base_url: str | None = None
    model: str | None = None
    api_key_variable: str = "OPENAI_API_KEY"
    effort: str | None = None
    """Value of `reasoning_effort`; None does not send it. Dropped, and said so, where it is refused."""
    max_tokens: int = Field(default=8192, ge=256)
    """Most tokens of one reply, its thoughts included; a proposal holds a whole program."""
    context_tokens: int = Field(default=131_072, ge=4096)
    """Context of the model that proposes, replies included; what does not fit is left out, and said so."""
    length_parameter: LengthParameter = "max_tokens"
    """Tried first; an endpoint that wants `max_completion_tokens` says so."""
    response_format: ResponseFormat = "json_schema"
    """Tried first; a poorer one is found where it is refused with 400 or 422."""
    endpoint: EndpointSettings = EndpointSettings(timeout_seconds=120)
    """Time-out, retries, rate limit and prices."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.improver != "rules" and not (self.base_url and self.model):
            raise ValueError(
                f"auxiliary.improver={self.improver} needs auxiliary.base_url and auxiliary.model"
            )
        if self.context_tokens < self.max_tokens + 2048:
            raise ValueError(
                f"auxiliary.context_tokens={self.context_tokens} leaves no room beside replies of "
                f"auxiliary.max_tokens={self.max_tokens}: give at least {self.max_tokens + 2048}"
            )
        return self


class TrainerConfig(_Config):
    """Where the outer recursion trains."""

    kind: Literal["embedded", "skyrl"] = "embedded"
    """`embedded`: one process, on the CPU or one GPU. `skyrl`: SkyRL on Ray with FSDP and vLLM, any number of
    GPUs; it is installed apart (deploy/skyrl.md)."""
    skyrl: SkyrlSettings = SkyrlSettings()
    """Of `kind=skyrl`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=0, ge=0)
    start: Literal["exec", "fork"] = "exec"
    """`fork`: jobs are forked from one process that has imported torch; saves 6 s a job, on the CPU only."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the embedded trainer's model and engine; `bfloat16`, on a GPU, keeps float32 master weights."""
    packing: Literal["auto", "tree", "flat", "rows"] = "auto"
    token_budget: Literal["auto"] | Annotated[int, Field(ge=16)] = "auto"
    """Tokens of one forward pass of the embedded trainer; `auto`: 768 on a CPU, 4096 on a GPU."""
    checkpointing: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    """Layers that the backward pass computes again. All four: docs/training.md."""
    claim: Literal["inline", "worker"] = "inline"
    """`inline`: the run claims its own handoff request. `worker`: it waits for `rinr worker`."""
    lease_seconds: Annotated[float, Field(gt=0)] = 120.0
    """A claim that is not renewed for so long may be taken by another worker (HAND-02)."""
    vllm: Literal["auto", "off"] = "auto"
    """`auto`: where vLLM can be imported, it too must load each export and score the panel (EXP-03)."""

    @model_validator(mode="after")
    def _forks_on_cpu(self) -> Self:
        if self.start == "fork" and self.device != "cpu":
            raise ValueError("trainer.start=fork needs trainer.device=cpu: a GPU's driver survives no fork")
        if self.precision == "bfloat16" and self.device == "cpu":
            raise ValueError("trainer.precision=bfloat16 needs a GPU: give float32 with trainer.device=cpu")
        if self.start == "fork" and self.kind == "skyrl":
            raise ValueError("trainer.kind=skyrl needs trainer.start=exec: Ray survives no fork")
        return self


class SandboxConfig(_Config):
    kind: Literal["auto", "docker", "bubblewrap"] = "auto"
    pool: int = Field(default=4, ge=0)
    """Started sandboxes that wait for the next episodes, some 5 MiB each; 0 is off. Changes no result."""

    @model_validator(mode="after")
    def _holds_both_roles(self) -> Self:
        if self.pool == 1:
            raise ValueError("sandbox.pool=1 cannot hold one sandbox of each role: give 0 or at least 2")
        return self


class StorageConfig(_Config):
    root: str = "runs"
    """Folder of the store, the catalog and the run folders."""
    cache: str = ".cache"
    """Folder of what can be made again: converted models and the sandbox's root."""


class RunConfig(_Config):
    """Everything that `rinr run` needs to know. The flow `rinr` takes exactly this."""

    recipe_name: str = "custom"
    """The recipe that the numbers come from; only a label."""
    mode: Literal["cycle", "harness", "model"] = "cycle"
    """`cycle`: harness and RL phases in turn. `harness`: harness phases only; the model is fixed, and may be
    a chat endpoint (SCHED-09). `model`: RL phases only, under one fixed program (SCHED-09)."""
    harness: str | None = None
    """Of `mode=model`, the fixed program: a file, a digest of the storage, or `run:ID`, the one that another
    run ended with. None is the initial program H0."""
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    """Names the run folder; the same id again resumes the run."""
    seed: int = Field(default=1, ge=0)
    release: str = "open-genomics"
    """Name of a bundled release, or a release folder."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes in flight, over all jobs of the run."""
    schedule: ScheduleConfig = ScheduleConfig()
    budgets: Budgets = Budgets()
    rl: RlContract = RlContract()
    model: ModelConfig = ModelConfig(name="smollm2-135m-instruct")
    auxiliary: AuxiliaryConfig = AuxiliaryConfig()
    judge: JudgeSettings = JudgeSettings()
    """Decides rubric criteria, where the release has such."""
    trainer: TrainerConfig = TrainerConfig()
    sandbox: SandboxConfig = SandboxConfig()
    storage: StorageConfig = StorageConfig()

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.mode != "model" and self.harness is not None:
            raise ValueError("harness=... is the fixed program of mode=model: leave it out, or set mode")
        if self.mode != "model" and self.rl.evaluate_every:
            raise ValueError(
                "RL-11: in-trainer evaluation is off in co-evolution: leave rl.evaluate_every out, or give "
                "mode=model"
            )
        if self.rl.evaluate_every and self.trainer.kind != "embedded":
            raise ValueError(
                "rl.evaluate_every needs trainer.kind=embedded, whose engine answers between two updates"
            )
        if self.schedule.protocol == "adaptation" and (self.mode, self.schedule.cycles) != ("harness", 1):
            raise ValueError("schedule.protocol=adaptation needs mode=harness and schedule.cycles=1")
        if self.schedule.trigger == "improvement" and self.mode != "cycle":
            raise ValueError(
                "schedule.trigger=improvement decides about RL phases, which only mode=cycle has"
            )
        return self


def check_trainable(config: RunConfig) -> None:
    """Refuse a run that trains on a service which cannot answer for what it trains.

    Raises `TokenIdsNeeded` (HOST-11), or `EndpointFixed` for a user's server that would have to serve an
    export of the run (HOST-10).
    """
    if config.mode == "harness":
        return
    refuse_chat_model(config.model.inference)
    later = config.schedule.cycles > 1 or (config.mode == "model" and config.schedule.pass_attempts > 0)
    if config.model.inference == "endpoint" and later:
        raise EndpointFixed(
            "model.inference=endpoint answers for the base model only, and this run must have its exports "
            "served: give model=vllm or another service that the run starts (one cycle, or mode=harness, "
            "takes an endpoint; with mode=model also schedule.pass_attempts=0)"
        )


def new_run_id(config: RunConfig) -> str:
    return f"{config.recipe_name}-s{config.seed}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _unchanged(trainer: TrainerConfig) -> set[str]:
    """The trainer's settings that change nothing: SkyRL's where it does not train, newer ones at default."""
    newer = ("precision", "packing", "token_budget", "checkpointing")
    default = {name for name in newer if getattr(trainer, name) == TrainerConfig.model_fields[name].default}
    return default if trainer.kind == "skyrl" else {*default, "kind", "skyrl"}


def config_identity(config: RunConfig) -> str:
    """Digest of every setting that can change a result; where things lie, and what they cost, is not one."""
    apart: dict[str, Any] = {
        **({} if config.mode == "model" else {"harness": True, "schedule": {"pass_attempts"}}),
        "run_id": True,
        "storage": True,
        # Where vLLM is not asked, its settings change nothing.
        "model": {"endpoint"} | (set() if config.model.inference == "vllm" else {"vllm"}),
        "auxiliary": {"endpoint"},
        "judge": {"endpoint"},
        "sandbox": {"pool"},
        "trainer": _unchanged(config.trainer),
    }
    return digest_json(config.model_dump(mode="json", exclude=apart))
