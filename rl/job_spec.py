"""The jobs of the outer recursion and their results, as files that two processes exchange. Needs no torch."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from broker.budgets import Budgets
from broker.evaluation import Evaluation
from rl.contract import RlContract
from rl.errors import RefusalReason
from rl.skyrl.settings import SkyrlSettings

ExportDtype = Literal["base", "bfloat16", "float16", "float32"]

PROGRESS = "progress.jsonl"
RESULT = "result.json"
PANEL = "panel.json"
EPISODES = "episodes.jsonl"
EXPORT = "export"
LOG = "log.txt"
SCRIPTED_ROLE = "RINR_SCRIPTED_ROLE"
"""Tells a test's scripted server what it is asked for: on the wire training looks like interactions."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EpisodeSetup(_Frozen):
    """What any process needs to run episodes the way the run does."""

    harness_code: str
    release: str
    """A bundled release's name or a release folder."""
    sandbox: Literal["auto", "docker", "bubblewrap"] = "auto"
    sandbox_pool: int = Field(default=0, ge=0)
    """Started sandboxes that wait for the next episodes; 0 is off."""
    sandbox_packages: Path
    """Folder with the packages of the execution environment."""
    runtime_cache: Path
    """Where the execution environment is built, or found."""
    sandbox_cache: Path
    budgets: Budgets
    guidance: str
    libraries: tuple[str, ...] = ()
    shell: bool = False
    """The execution environment has a shell, for tasks that scripts check."""
    judge: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Settings of the rubric's judge (`broker.judge.JudgeSettings`); empty is none."""
    seed: int = Field(ge=0)
    concurrency: int = Field(default=64, ge=1)
    """Episodes in flight."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, ge=1)
    """Torch threads; None leaves the choice to torch."""
    max_batch: int = Field(default=32, ge=1)
    """Sequences that the engine generates at once."""
    scripted_server: tuple[str, ...] = ()
    """Tests only: the command of a server whose scripted answers stand in for the engine's."""
    folder: Path
    """The job's own folder: progress, log, result."""


class Job(EpisodeSetup):
    """One RL stage: base model in, export out."""

    base_model: Path
    contract: RlContract
    cycle: int = Field(ge=1)
    cursor: int = Field(default=0, ge=0)
    """Where the draw of Train tasks begins."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What model and engine compute in. `bfloat16`, on a GPU, keeps float32 master weights, which are what is
    exported; a model of 4 B fits one GPU so."""
    packing: Literal["auto", "tree", "flat", "rows"] = "auto"
    """How the trainer lays rows into one forward pass (docs/training.md)."""
    token_budget: Literal["auto"] | Annotated[int, Field(ge=16)] = "auto"
    """Tokens of one forward pass of the trainer, about 2 MB each for a 135 M model; `auto`: 768 on a CPU,
    4096 on a GPU."""
    checkpointing: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    """Layers that the backward pass computes again; `auto`: what the GPU's free memory asks for, or none."""
    export_dtype: ExportDtype = "float32"
    """`base` is half the size, but small steps vanish in bfloat16: measured on a 135 M model, three updates
    at 1e-5 moved the panel by up to 0.55, and rounding took nearly all of it back. See `rounding_gap`."""
    panel_sequences: int = Field(default=8, ge=1)
    """Train prompts in the panel that trainer and export both score."""
    skyrl: SkyrlSettings | None = None
    """Train with SkyRL. None is the embedded trainer."""


class UpdateReport(_Frozen):
    """One update as a person wants to see it. Training accuracy is on changing samples (REP-02)."""

    update: int
    """From 1."""
    reward: float
    """Mean over all attempts that were not lost."""
    completion_rate: float
    """Share of them with a first answer in valid format."""
    episodes: int
    model_calls: int
    zero_call_episodes: int
    zero_variance_groups: int
    lost_prompts: int
    """Tasks masked because our infrastructure lost an attempt."""
    silent_prompts: int
    """Tasks none of whose attempts called the model."""
    skipped: Literal["no_contrast", "not_finite"] | None = None
    """Why this update took no step: every group's rewards were equal, or its numbers were not finite."""
    loss: float | None
    """Here and below: None stands for a number that is not finite, or was not measured."""
    gradient_norm: float | None
    clip_share: float
    entropy: float | None = None
    """Mean of the policy's entropy in nats over the computed tokens, before the step."""
    logprob_gap_mean: float | None
    logprob_gap_max: float | None
    valid_tokens: int
    trained_tokens: int
    computed_tokens: int
    plain_tokens: int
    micro_batches: int
    token_budget: int = 0
    checkpointed_layers: int = 0
    halvings: int = 0
    """1 if memory ran out in this update, which was begun again with half the token budget."""
    device_peak_bytes: int = 0
    """The most that torch held on a GPU during the update."""
    generated_tokens: int
    tokens_per_second: float
    """Generated tokens per second of rollout wall clock."""
    seconds_generate: float
    seconds_score: float = 0.0
    """Scoring the batch apart from the update. The embedded trainer scores inside the update: 0."""
    seconds_update: float
    seconds_sync: float
    """Pausing and resuming the engine."""


class PeriodicEvaluation(_Frozen):
    """Full Val between two updates. Either `evaluation` is there, or `lost` says what failed."""

    update: int
    """Updates before it."""
    evaluation: Evaluation | None = None
    lost: str = ""
    seconds: float


class JobResult(_Frozen):
    """What a finished training process leaves in `result.json`."""

    export: Path
    model: str
    """Digest of the export's manifest."""
    base: str
    """Identity of the model that training started from."""
    panel: Path
    packing: Literal["tree", "flat", "rows"]
    updates: tuple[UpdateReport, ...]
    evaluations: tuple[PeriodicEvaluation, ...] = ()
    """Of stand-alone model mode; empty in co-evolution (RL-11)."""
    cursor: int
    """Where the next cycle's draw begins."""
    rounding_gap: float
    """Largest change of a panel log-probability by rounding weights to the export's dtype."""
    engine_gap: float
    """Largest difference in log-probability between trainer and rollout engine on the panel."""
    seconds: float
    peak_memory_bytes: int


class ValidationJob(EpisodeSetup):
    """Load an export in a process of its own and prove that it is a model."""

    export: Path
    base_model: Path
    panel: Path
    export_dtype: ExportDtype = "float32"
    """What the job was told."""
    vllm: Literal["auto", "off"] = "auto"
    """`auto`: vLLM, where it can be imported, must load the export and score the panel too."""


class PanelGaps(_Frozen):
    """How far apart two scorers of the panel were at most, in log-probability."""

    trainer_export: float
    engine_export: float
    """Between rollout engine and loaded export, on what the engine said itself."""
    trainer_engine: float
    engine_mean: float | None = None
    """Mean between rollout engine and the trainer's weights rounded to its type; judged where that type is
    narrower than float32, and None where it is not."""


class VllmCheck(_Frozen):
    """What vLLM made of an export."""

    version: str
    mean_gap: float
    """Mean absolute difference in log-probability to the trainer, over the panel."""
    max_gap: float
    generated_tokens: int


class Loaded(_Frozen):
    """What was accepted as a model, and by which numbers."""

    architecture: str
    dtype: str
    tokenizer: str
    """Digest of tokenizer, chat template and named special tokens together: what encodes prompts."""
    chat_template: str
    """Digest of the template's text."""
    gaps: PanelGaps
    vllm: VllmCheck | None
    """None where vLLM is not installed, or was switched off."""


class ValidationResult(_Frozen):
    """The verdict on an export. Either `refused` is set, or everything else is."""

    refused: RefusalReason | None = None
    detail: str = ""
    model: str | None = None
    """Digest of the checked manifest."""
    loaded: Loaded | None = None
    evaluation: Evaluation | None = None
    """First answers on the whole Test split by the loaded export."""
    episodes: Path | None = None
    """The graded episodes, one JSON a line. Private."""
    generated_tokens: int = 0
    seconds: float = 0.0
