"""Another process refuses a bad export by name: real files of the tiny model, each broken in one way."""

import importlib.util
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rl_jobs
import torch
from safetensors.torch import load_file, save_file

from broker.attempt import Attempt
from broker.broker import Broker
from broker.errors import SandboxLost
from rl import vllm_check
from rl.errors import ExportRefused, RefusalReason, TrainingError
from rl.export import write_export
from rl.job_spec import RESULT, ValidationJob, ValidationResult
from rl.launch import validate_export
from rl.manifest import MANIFEST, describe_folder
from rl.panel import Panel, hear_engine, make_panel
from rl.services import open_engine
from rl.validate import run
from rl.weights import WEIGHTS
from tests.fixtures.episodes import release, template
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.sandboxes import real_sandboxes

FAKE_VLLM = Path(__file__).parents[1] / "fixtures" / "fake_vllm"


def finish(folder: Path, change: Callable[[torch.nn.Module], None]) -> Path:
    """What a training process leaves: `export` and `panel.json`, from an engine whose weights have moved."""
    engine = open_engine(rl_jobs.job(folder), rl_jobs.base_model())
    engine.pause()
    with torch.no_grad():
        change(engine.model)
    manifest = write_export(engine.model, rl_jobs.base_model(), folder / "export", dtype="float32")
    prompts = [
        template().encode([{"role": "user", "content": task.prompt}]) for task in release().split("train")[:4]
    ]
    panel = make_panel(engine.model, prompts, manifest.dtype)
    engine.resume()
    panel = hear_engine(panel, engine, engine.model, longest=engine.max_length)
    engine.close()
    (folder / "panel.json").write_text(panel.model_dump_json())
    return folder


def moved(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    for value in model.parameters():
        value.add_(torch.randn(value.shape, generator=generator) * 0.003)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(tmp_path_factory.mktemp("finished"), moved)


@pytest.fixture
def job(finished: Path, tmp_path: Path) -> ValidationJob:
    export = Path(shutil.copytree(finished / "export", tmp_path / "export"))
    return rl_jobs.validation(tmp_path / "check", export, finished / "panel.json", vllm="off")


def seal(folder: Path) -> None:
    """A manifest that fits what the folder has become, so that only the later checks can notice."""
    (folder / MANIFEST).write_text(json.dumps(describe_folder(folder).model_dump(mode="json")))


def corrupted(export: Path) -> None:
    data = bytearray((export / WEIGHTS).read_bytes())
    data[-100] ^= 64
    (export / WEIGHTS).write_bytes(data)


def truncated(export: Path) -> None:
    data = (export / WEIGHTS).read_bytes()
    (export / WEIGHTS).write_bytes(data[: len(data) // 2])
    seal(export)


def renamed_file(export: Path) -> None:
    (export / WEIGHTS).rename(export / "pytorch_model.safetensors")
    seal(export)


def renamed_tensors(export: Path) -> None:
    tensors = {f"_fsdp_wrapped_module.{name}": value for name, value in load_file(export / WEIGHTS).items()}
    save_file(tensors, export / WEIGHTS, metadata={"format": "pt"})
    seal(export)


def renamed_architecture(export: Path) -> None:
    config = json.loads((export / "config.json").read_text())
    (export / "config.json").write_text(json.dumps({**config, "architectures": ["FSDPLlamaForCausalLM"]}))
    seal(export)


def base_identical(export: Path) -> None:
    shutil.copy(rl_jobs.base_model() / WEIGHTS, export / WEIGHTS)
    seal(export)


def wrong_tokenizer(export: Path) -> None:
    tokenizer = json.loads((export / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (export / "tokenizer.json").write_text(json.dumps(tokenizer))
    seal(export)


def no_template(export: Path) -> None:
    (export / "chat_template.jinja").unlink()
    seal(export)


def other_dtype(export: Path) -> None:
    tensors = {name: value.bfloat16() for name, value in load_file(export / WEIGHTS).items()}
    save_file(tensors, export / WEIGHTS, metadata={"format": "pt"})
    seal(export)


def not_finite(export: Path) -> None:
    tensors = load_file(export / WEIGHTS)
    tensors["model.norm.weight"][3] = torch.inf
    save_file(tensors, export / WEIGHTS, metadata={"format": "pt"})
    seal(export)


def other_training(export: Path) -> None:
    tensors = load_file(export / WEIGHTS)
    tensors["model.norm.weight"] *= 1.01
    save_file(tensors, export / WEIGHTS, metadata={"format": "pt"})
    seal(export)


@pytest.mark.spec("EXP-02", "EXP-03")
@pytest.mark.parametrize(
    ("damage", "reason", "words"),
    [
        (corrupted, "manifest", WEIGHTS),
        (truncated, "weights_unreadable", WEIGHTS),
        (renamed_file, "weights_unreadable", "has neither model.safetensors nor"),
        (renamed_tensors, "architecture", "the base has no _fsdp_wrapped_module."),
        (renamed_architecture, "architecture", "FSDPLlamaForCausalLM"),
        (base_identical, "weights_equal_base", "no weight differs from the base"),
        (wrong_tokenizer, "tokenizer", "tokenizer.json"),
        (no_template, "chat_template", "no chat template"),
        (other_dtype, "dtype", "the config says torch.float32"),
        (not_finite, "weights_not_finite", "model.norm.weight"),
    ],
)
async def test_another_process_refuses_a_bad_export_with_the_reason(
    job: ValidationJob, damage: Callable[[Path], None], reason: RefusalReason, words: str
) -> None:
    damage(job.export)
    with pytest.raises(ExportRefused) as caught:
        await validate_export(job, fork=True)
    assert caught.value.reason == reason
    assert words in caught.value.detail


@pytest.mark.spec("EXP-03")
@pytest.mark.slow
async def test_another_process_refuses_the_weights_of_another_training_by_the_panel(
    job: ValidationJob,
) -> None:
    await real_sandboxes().close()
    other_training(job.export)
    with pytest.raises(ExportRefused) as caught:
        await validate_export(job, fork=True)
    assert caught.value.reason == "panel"
    assert "between rollout engine and export" in caught.value.detail


@pytest.mark.spec("EXP-02", "EXP-03")
@pytest.mark.slow
async def test_another_process_accepts_the_export_that_all_the_others_were_made_of(
    job: ValidationJob,
) -> None:
    await real_sandboxes().close()
    accepted = await validate_export(job, fork=True)
    assert accepted.loaded is not None
    gaps = accepted.loaded.gaps
    assert max(gaps.trainer_export, gaps.engine_export, gaps.trainer_engine) < 1e-4
    assert accepted.evaluation is not None
    assert accepted.evaluation.total == len(release().split("test"))
    assert accepted.loaded.vllm is None


# -- what only episodes show: in this process, with a sandbox that is a fake ---------------------------------


async def verdict(job: ValidationJob, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a validation process leaves in `result.json`, beside its log and progress."""
    monkeypatch.setattr("rl.validate.open_sandboxes", lambda setup: factory)
    await run(job)
    return (job.folder / RESULT).read_text()


@pytest.mark.spec("EXP-02")
async def test_a_training_that_left_a_model_without_words_is_refused_though_all_its_numbers_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silenced(model: torch.nn.Module) -> None:
        # Every token is as likely as any other: at temperature 0 the first one is said, which ends nothing
        # and is shown as nothing.
        model.model.norm.weight.zero_()

    made = finish(tmp_path, silenced)
    job = rl_jobs.validation(tmp_path / "check", made / "export", made / "panel.json", vllm="off")
    found = ValidationResult.model_validate_json(await verdict(job, FakeFactory(), monkeypatch))
    assert found.refused == "empty_generations"
    assert found.detail == "all 4 generations are blank or one character"
    assert found.evaluation is None


@pytest.mark.spec("EXP-02", "SEL-04")
async def test_a_test_split_that_is_not_covered_whole_refuses_the_export(
    job: ValidationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all = Broker.run_all

    async def forgetful(broker: Broker, attempts: list[Attempt], **options: Any) -> list[Any]:
        return (await run_all(broker, attempts, **options))[:-1]

    monkeypatch.setattr(Broker, "run_all", forgetful)
    found = ValidationResult.model_validate_json(await verdict(job, FakeFactory(), monkeypatch))
    last = release().split("test")[-1].id
    assert found.refused == "coverage"
    assert f"3 episodes for 4 tasks, which gives no score; missing ['{last}']" in found.detail
    assert found.evaluation is None


@pytest.mark.spec("EXP-02", "HOST-07")
async def test_an_episode_that_our_sandboxes_lose_is_no_verdict_on_the_export(
    job: ValidationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(seconds: float) -> None: ...

    monkeypatch.setattr("broker.broker.asyncio.sleep", at_once)
    factory = FakeFactory()
    factory.failures = 1 << 30
    with pytest.raises(SandboxLost):
        await verdict(job, factory, monkeypatch)
    assert not (job.folder / RESULT).exists()


# -- vLLM: a stand-in with the names that are used; the real one where there is one --------------------------


@pytest.fixture
def with_fake_vllm(job: ValidationJob, monkeypatch: pytest.MonkeyPatch) -> ValidationJob:
    monkeypatch.syspath_prepend(FAKE_VLLM)
    monkeypatch.setenv("PYTHONPATH", str(FAKE_VLLM))
    job.folder.mkdir()
    return job


@pytest.mark.spec("EXP-03")
async def test_vllm_where_it_is_installed_scores_the_panel_as_the_trainer_did(
    with_fake_vllm: ValidationJob,
) -> None:
    assert vllm_check.importable()
    found = await vllm_check.check(with_fake_vllm)
    assert found.version == "0.0.fake"
    assert found.mean_gap <= found.max_gap < 1e-4
    assert found.generated_tokens == 4


@pytest.mark.spec("EXP-03")
@pytest.mark.parametrize(
    ("fault", "words"), [("deaf", "trainer and vLLM differ by"), ("silent", "vLLM generates nothing")]
)
async def test_a_model_that_vllm_reads_otherwise_is_refused(
    with_fake_vllm: ValidationJob, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_VLLM", fault)
    with pytest.raises(ExportRefused, match=words) as caught:
        await vllm_check.check(with_fake_vllm)
    assert caught.value.reason == "vllm"


async def test_a_vllm_that_fails_or_hangs_is_no_verdict_on_the_export(
    with_fake_vllm: ValidationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "crash")
    with pytest.raises(TrainingError, match=r"status 1: .*CUDA out of memory \(trainer.vllm=off leaves"):
        await vllm_check.check(with_fake_vllm)
    monkeypatch.setenv("FAKE_VLLM", "hang")
    started = time.monotonic()
    with pytest.raises(TrainingError, match="did not score the export within 3 s"):
        await vllm_check.check(with_fake_vllm, seconds=3)
    assert time.monotonic() - started < 30


def test_scores_of_other_tokens_than_the_panels_are_refused(job: ValidationJob) -> None:
    panel = Panel.model_validate_json(job.panel.read_bytes())
    short = vllm_check.Scores(version="1", sequences=panel.rounded[:-1], generated_tokens=1)
    with pytest.raises(ExportRefused, match="did not score every token"):
        vllm_check.judge(job, short)


@pytest.mark.spec("EXP-02")
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
async def test_the_real_vllm_loads_the_export_and_agrees(job: ValidationJob) -> None:
    job.folder.mkdir()
    assert (await vllm_check.check(job)).generated_tokens > 0
