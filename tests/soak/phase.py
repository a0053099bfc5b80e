"""`python -m tests.soak.phase PHASE.json`: one RL phase of one seed, Test measured on both sides of it.

The same job and validation that a run gives its outer stage; before, the base model is evaluated with the
same program, seed and temperature 0. `result.json` appears in the phase's folder, or nothing does. Must not
know other seeds, or what is concluded.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from broker.budgets import Budgets
from broker.engine.default_model import model_digest
from broker.evaluation import Evaluation, evaluate
from broker.guidance import host_guidance
from broker.harness import Harness
from broker.outside import runtime_for
from broker.record import StopReason
from catalog.digest import digest_bytes
from harness_lab.improver.assemble import Trait, assemble
from rl.contract import RlContract
from rl.errors import TrainingError
from rl.job_spec import EpisodeSetup, Job, JobResult, UpdateReport, ValidationJob
from rl.launch import run_job, validate_export
from rl.services import open_broker, open_engine, open_sandboxes
from tests.soak.curves import PhaseResult
from verifier.release import find

RECIPE = Path(__file__).parents[2] / "conf/recipe/laptop.yaml"
ADOPTED = frozenset({Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP})
"""What the laptop recipe's first harness phase adopts: H0 itself never gives a readable answer."""
RESULT = "result.json"


class Phase(BaseModel):
    """One seed's phase, as a file that a process of its own reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    folder: Path
    model: Path
    cache: Path
    release: str = "open-genomics"
    """What Test is measured on."""
    training_release: str | None = None
    """A shuffled variant that is trained on; None is the same release."""
    harness_code: str
    budgets: Budgets
    contract: RlContract
    concurrency: int = 32
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    max_batch: int = 32
    sandbox: Literal["auto", "docker", "bubblewrap"] = "auto"


def recipe(updates: int | None = None) -> dict[str, Any]:
    """The laptop recipe's budgets and contract, and the program that its first harness phase adopts."""
    read: Mapping[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    changed = {} if updates is None else {"updates": updates}
    return {
        "harness_code": assemble(ADOPTED),
        "budgets": Budgets(**read["budgets"]),
        "contract": RlContract(**{**read["rl"], **changed}),
        "concurrency": read["concurrency"],
    }


def episode_setup(phase: Phase, name: str, release: str) -> dict[str, Any]:
    """What both jobs need to run episodes the way a run does (rl.job_spec.EpisodeSetup)."""
    packages, runtime_cache = phase.cache / "sandbox-packages", phase.cache / "runtime"
    runtime = runtime_for(shell=False, packages=packages, cache=runtime_cache)
    return {
        "harness_code": phase.harness_code,
        "release": release,
        "sandbox": phase.sandbox,
        "sandbox_pool": 4,
        "sandbox_packages": packages,
        "runtime_cache": runtime_cache,
        "sandbox_cache": phase.cache,
        "budgets": phase.budgets,
        "guidance": host_guidance(find(release).inventory()),
        "libraries": runtime.libraries,
        "seed": phase.seed,
        "concurrency": phase.concurrency,
        "device": phase.device,
        "threads": phase.threads,
        "max_batch": phase.max_batch,
        "folder": phase.folder / name,
    }


async def measure_base(phase: Phase) -> Evaluation:
    """Test by the base model, in this process; the engine is gone afterwards."""
    setup = EpisodeSetup(**episode_setup(phase, "before", phase.release))
    sandboxes = open_sandboxes(setup)
    engine = open_engine(setup, phase.model)
    try:
        async with open_broker(setup, engine, phase.model, sandboxes) as broker:
            evaluation, _ = await evaluate(broker, Harness(code=phase.harness_code), "test", seed=phase.seed)
    finally:
        engine.close()
    return evaluation


async def measure_export(phase: Phase, trained: JobResult) -> Evaluation:
    """Test by the loaded export, in a process of its own."""
    checked = await validate_export(
        ValidationJob(
            **episode_setup(phase, "validate", phase.release),
            export=trained.export,
            base_model=phase.model,
            panel=trained.panel,
            vllm="off",
        )
    )
    assert checked.evaluation is not None
    return checked.evaluation


async def _train(phase: Phase, job: Job, reports: list[UpdateReport]) -> JobResult | None:
    """The phase, with its updates in `reports`; None where no batch had contrast."""

    def seen(event: Mapping[str, Any]) -> None:
        if event.get("event") == "update":
            reports.append(UpdateReport.model_validate({k: v for k, v in event.items() if k != "event"}))
        _report(phase, event)

    try:
        return await run_job(job, seen)
    except TrainingError:
        whole = len(reports) == phase.contract.updates
        if whole and all(report.skipped == "no_contrast" for report in reports):
            _say(phase, "no batch had contrast: the model is the base")
            return None
        raise


async def run_phase(phase: Phase) -> PhaseResult:
    """Before, train, after. Raises `TrainingError` or `ExportRefused` as a run's stage would.

    A phase whose batches were all without contrast trains nothing, and a run ends there; here the base model
    is what comes after.
    """
    started, load = time.monotonic(), os.getloadavg()[0]
    before = await measure_base(phase)
    _say(phase, f"Test before: {before.correct} of {before.total}")
    trained_on = phase.training_release or phase.release
    setup = episode_setup(phase, "train", trained_on)
    job = Job(**setup, base_model=phase.model, contract=phase.contract, cycle=1)
    reports: list[UpdateReport] = []
    trained = await _train(phase, job, reports)
    after = before if trained is None else await measure_export(phase, trained)
    _say(phase, f"Test after: {after.correct} of {after.total}")
    base = model_digest(phase.model)
    return PhaseResult(
        seed=phase.seed,
        shuffled=phase.training_release is not None,
        rewards=tuple(update.reward for update in reports),
        completion_rates=tuple(update.completion_rate for update in reports),
        zero_variance_groups=tuple(update.zero_variance_groups for update in reports),
        before={outcome.task_id: outcome.correct for outcome in before.outcomes},
        after={outcome.task_id: outcome.correct for outcome in after.outcomes},
        valid_before=before.valid,
        valid_after=after.valid,
        read=tuple(
            one.task_id
            for one, other in zip(before.outcomes, after.outcomes, strict=True)
            if one.format_valid and other.format_valid
        ),
        timed_out=_timed_out(before) + _timed_out(after),
        identities={
            "harness": digest_bytes(phase.harness_code.encode()),
            "base": base,
            "export": base if trained is None else trained.model,
            "contract": phase.contract.digest,
            "trained on": find(trained_on).digest,
            "measured on": find(phase.release).digest,
        },
        device=phase.device,
        seconds=time.monotonic() - started,
        load=load,
    )


def _timed_out(evaluation: Evaluation) -> int:
    by_clock = (StopReason.TIME_BUDGET, StopReason.TOOL_TIMEOUT)
    return sum(outcome.stop_reason in by_clock for outcome in evaluation.outcomes)


def _report(phase: Phase, event: Mapping[str, Any]) -> None:
    if event.get("event") == "update":
        _say(
            phase,
            f"update {event['update']} of {phase.contract.updates}: reward {event['reward']:.2f}, "
            f"{event['seconds_generate']:.0f} s of rollouts, {event['seconds_update']:.0f} s of update",
        )


def _say(phase: Phase, text: str) -> None:
    kind = "shuffled, " if phase.training_release is not None else ""
    print(f"{kind}seed {phase.seed}: {text}", flush=True)


def main(path: str) -> int:
    phase = Phase.model_validate_json(Path(path).read_bytes())
    phase.folder.mkdir(parents=True, exist_ok=True)
    result = asyncio.run(run_phase(phase))
    partial = phase.folder / f".{RESULT}"
    partial.write_text(result.model_dump_json(indent=1))
    partial.replace(phase.folder / RESULT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
