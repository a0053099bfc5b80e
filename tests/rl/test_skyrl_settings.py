"""Settings, mapping, installation and exports of the SkyRL backend, as far as no SkyRL is needed."""

import importlib.util
import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import rl_jobs

from rl.contract import RlContract
from rl.errors import TrainingError
from rl.job_spec import Job
from rl.launch import run_job
from rl.skyrl.found import find_export
from rl.skyrl.installed import load_experiment, require_gpus, require_skyrl
from rl.skyrl.mapping import overrides
from rl.skyrl.prompts import PromptRows
from rl.skyrl.settings import SkyrlSettings
from tasks.config import RunConfig, config_identity
from tests.fixtures.episodes import TINY_MODEL, release


def job(folder: Path = Path("/nowhere"), **changes: Any) -> Job:
    return rl_jobs.job(folder, **{"skyrl": SkyrlSettings(), **changes})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gpus_per_node": 4, "tensor_parallel": 3}, "does not divide the 4 GPUs"),
        ({"gpus_per_node": 4, "engines": 2}, "leave skyrl.engines=0, or give 4"),
        ({"gpus_per_node": 4, "tensor_parallel": 2, "engines": 4}, "or give 2"),
        ({"memory_share": 1.0}, "less than 1"),
        ({"gpus": 4}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SkyrlSettings.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "policy", "engines", "all_gpus"),
    [
        ({}, 1, 1, 1),
        ({"nodes": 2, "gpus_per_node": 8}, 16, 16, 16),
        ({"gpus_per_node": 8, "tensor_parallel": 4}, 8, 2, 8),
        ({"gpus_per_node": 4, "colocated": False, "engines": 3, "tensor_parallel": 2}, 4, 3, 10),
        ({"gpus_per_node": 2, "colocated": False}, 2, 2, 4),
    ],
)
def test_gpus_are_counted_for_policy_and_engines(
    settings: dict[str, Any], policy: int, engines: int, all_gpus: int
) -> None:
    found = SkyrlSettings.model_validate(settings)
    assert (found.policy_gpus, found.engine_count, found.gpus) == (policy, engines, all_gpus)


@pytest.mark.spec("RL-02", "RL-10")
@pytest.mark.parametrize(
    "name",
    [
        "generator.sampling_params.top_p",
        "trainer.algorithm.use_kl_loss",
        "trainer.algorithm.loss_reduction",
        "generator.step_wise_trajectories",
        "trainer.policy.model.path",
    ],
)
def test_no_option_changes_the_objective_or_the_bookkeeping(name: str) -> None:
    with pytest.raises(TrainingError, match=f"must not set {name}"):
        overrides(job(skyrl=SkyrlSettings(options={name: 1})))


TOLD: dict[str, Any] = {
    "trainer.algorithm.advantage_estimator": "grpo",
    "trainer.algorithm.grpo_norm_by_std": True,
    "trainer.algorithm.policy_loss_type": "regular",
    "trainer.algorithm.loss_reduction": "token_mean",
    "trainer.algorithm.eps_clip_low": 0.1,
    "trainer.algorithm.eps_clip_high": 0.3,
    "trainer.algorithm.use_kl_loss": False,
    "trainer.algorithm.use_kl_in_reward": False,
    "trainer.policy.optimizer_config.lr": 1e-6,
    "trainer.policy.optimizer_config.weight_decay": 0.02,
    "trainer.policy.optimizer_config.max_grad_norm": 0.7,
    "trainer.policy.optimizer_config.num_warmup_steps": 0,
    "trainer.policy.optimizer_config.scheduler": "constant_with_warmup",
    "trainer.epochs": 1,
    "trainer.update_epochs_per_batch": 1,
    "trainer.max_training_steps": 30,
    "trainer.train_batch_size": 8,
    "trainer.policy_mini_batch_size": 8,
    "trainer.critic_mini_batch_size": 8,
    "generator.n_samples_per_prompt": 16,
    "generator.step_wise_trajectories": True,
    "generator.merge_stepwise_output": False,
    "generator.sampling_params.temperature": 1.0,
    "generator.sampling_params.top_p": 1.0,
    "generator.sampling_params.logprobs": 1,
    "trainer.eval_interval": -1,
    "trainer.eval_before_train": False,
    "trainer.hf_save_interval": 30,
    "trainer.ckpt_interval": -1,
    "trainer.resume_mode": "none",
}
"""Written out: SkyRL accepts a wrong value as gladly as a right one."""


@pytest.mark.spec("RL-01", "RL-02", "RL-10", "RL-11", "RL-12")
def test_the_contract_says_these_things_to_skyrl() -> None:
    # Where two settings have one default, the contract has two values here.
    contract = RlContract(attempts=16, clip_low=0.1, clip_high=0.3, weight_decay=0.02, max_grad_norm=0.7)
    found = overrides(job(contract=contract))
    assert {name: found[name] for name in TOLD} == TOLD


def test_gpus_engines_and_lengths_are_told_to_skyrl_as_they_were_set() -> None:
    settings = SkyrlSettings(
        nodes=2,
        gpus_per_node=4,
        colocated=False,
        engines=3,
        tensor_parallel=2,
        memory_share=0.45,
        micro_batch=2,
    )
    found = overrides(job(skyrl=settings))
    told = {
        "trainer.strategy": "fsdp",
        "trainer.placement.colocate_all": False,
        "trainer.placement.policy_num_nodes": 2,
        "trainer.placement.policy_num_gpus_per_node": 4,
        "generator.inference_engine.num_engines": 3,
        "generator.inference_engine.tensor_parallel_size": 2,
        "generator.inference_engine.gpu_memory_utilization": 0.45,
        # A batch of 16 episodes on 8 GPUs.
        "trainer.micro_train_batch_size_per_gpu": 2,
        "trainer.micro_forward_batch_size_per_gpu": 2,
        "generator.sampling_params.max_generate_length": 32,
        "generator.max_input_length": 512,
        "trainer.max_prompt_length": 512,
        "trainer.seed": 1,
        "trainer.policy.model.path": str(rl_jobs.base_model()),
    }
    assert {name: found[name] for name in told} == told


def test_options_reach_skyrl_and_win_over_technical_defaults() -> None:
    options = {"trainer.flash_attn": True, "trainer.policy.fsdp_config.cpu_offload": True}
    found = overrides(job(skyrl=SkyrlSettings(options=options)))
    assert {name: found[name] for name in options} == options


def test_a_delta_that_skyrl_does_not_have_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"rl.advantage_delta=0.001 cannot be had"):
        overrides(job(contract=RlContract(advantage_delta=1e-3)))


def test_a_batch_that_does_not_divide_over_the_gpus_is_refused() -> None:
    with pytest.raises(TrainingError, match="= 15 episodes do not divide over 4 GPUs"):
        overrides(
            job(
                contract=RlContract(prompts_per_batch=3, attempts=5),
                skyrl=SkyrlSettings(gpus_per_node=4),
            )
        )


@pytest.mark.parametrize(("micro", "episodes", "rows"), [(4, 64, 4), (4, 15, 3), (16, 64, 16), (5, 7, 1)])
def test_micro_batches_divide_a_gpus_episodes(micro: int, episodes: int, rows: int) -> None:
    assert SkyrlSettings(micro_batch=micro).micro_batch_of(episodes) == rows


def test_the_engine_is_as_long_as_the_context_or_the_model(tmp_path: Path) -> None:
    name = "generator.inference_engine.engine_init_kwargs.max_model_len"
    assert overrides(job())[name] == 512
    shutil.copytree(TINY_MODEL, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_bytes())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "max_position_embeddings": 300}))
    assert overrides(job(base_model=tmp_path / "model"))[name] == 300


@pytest.mark.parametrize(
    ("version", "accepted"),
    [("0.2.0", False), ("0.3.0", True), ("0.3.1", True), ("0.4.0", True), ("0.5.0", False), ("1.0", False)],
)
def test_versions_outside_the_range_are_refused_by_name(
    version: str, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    if accepted:
        assert require_skyrl() == version
    else:
        with pytest.raises(
            TrainingError, match=rf"SkyRL {version} is installed.*>=0.3,<0.5.*deploy/skyrl.md"
        ):
            require_skyrl()


def test_a_skyrl_without_its_packages_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.4.0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else object())
    with pytest.raises(TrainingError, match=r"installed without ray: deploy/skyrl.md"):
        require_skyrl()


@pytest.mark.skipif(importlib.util.find_spec("skyrl") is not None, reason="SkyRL is installed here")
async def test_a_job_without_skyrl_ends_with_one_line_that_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        await run_job(job(tmp_path / "train"))
    (line,) = str(caught.value).splitlines()
    assert "needs SkyRL, which is not installed here: deploy/skyrl.md" in line
    assert "trainer.kind=embedded" in line


def test_too_few_gpus_are_told_before_anything_waits_for_them() -> None:
    require_gpus(SkyrlSettings(gpus_per_node=2), 2)
    with pytest.raises(TrainingError, match=r"on 16 GPUs \(2 nodes x 8\), Ray has 4: set trainer.skyrl"):
        require_gpus(SkyrlSettings(nodes=2, gpus_per_node=8), 4)


@pytest.mark.parametrize("name", ["nothing", "no.such.module:Thing", "rl.skyrl.settings:Missing"])
def test_an_experiment_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(TrainingError, match=f"cannot load trainer.skyrl.experiment={name}"):
        load_experiment(name)


@pytest.mark.spec("SCHED-05", "RL-01", "RL-03")
def test_rows_follow_the_order_of_the_embedded_trainer_and_each_has_its_uid() -> None:
    from rl.order import draw_batch, training_order, training_tasks

    wanted = job(contract=RlContract(updates=3, prompts_per_batch=4), cursor=5)
    rows = PromptRows(wanted, release())
    order = training_order(wanted.seed, training_tasks(release()))
    assert len(rows) == 12
    for update in range(3):
        expected = [task.id for task in draw_batch(order, 5 + 4 * update, 4)]
        got = [rows[4 * update + i] for i in range(4)]
        assert [item["env_extras"]["task"] for item in got] == expected
        assert {item["env_extras"]["update"] for item in got} == {update + 1}
    assert len({rows[index]["uid"] for index in range(12)}) == 12
    assert rows.cursor == 17


# -- exports ---------------------------------------------------------------------------------------------


def export(root: Path, step: int) -> Path:
    policy = root / f"global_step_{step}" / "policy"
    shutil.copytree(TINY_MODEL, policy)
    return policy


def test_the_newest_complete_export_is_found_and_temporary_names_are_ignored(tmp_path: Path) -> None:
    wanted = export(tmp_path, 10)
    export(tmp_path, 9)
    for name in ("global_step_11.tmp", "tmp_global_step_12", ".global_step_13", "global_step_"):
        shutil.copytree(wanted.parent, tmp_path / name)
    assert find_export(tmp_path) == wanted


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_export_without_one_of_its_files_is_not_complete(tmp_path: Path, missing: str) -> None:
    older = export(tmp_path, 1)
    (export(tmp_path, 2) / missing).unlink()
    assert find_export(tmp_path) == older


def test_what_a_killed_save_left_beside_the_policy_is_no_export(tmp_path: Path) -> None:
    older = export(tmp_path, 1)
    newer = export(tmp_path, 2)
    newer.rename(newer.with_name(".tmp-hf-export-x1"))
    assert find_export(tmp_path) == older


@pytest.mark.parametrize("left", [0, 7, 2000])
def test_weights_that_were_cut_off_are_not_complete(tmp_path: Path, left: int) -> None:
    older = export(tmp_path, 1)
    weights = export(tmp_path, 2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:left])
    assert find_export(tmp_path) == older


def test_no_complete_export_says_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no complete export .*found: nothing"):
        find_export(tmp_path / "absent")
    (export(tmp_path, 4) / "model.safetensors").unlink()
    with pytest.raises(TrainingError, match=r"found: global_step_4"):
        find_export(tmp_path)


# -- a run's configuration ---------------------------------------------------------------------------------


def test_settings_of_skyrl_are_part_of_a_runs_identity_only_where_it_trains() -> None:
    plain = RunConfig()
    other = RunConfig.model_validate({"trainer": {"skyrl": {"gpus_per_node": 4}}})
    chosen = RunConfig.model_validate({"trainer": {"kind": "skyrl"}})
    larger = RunConfig.model_validate({"trainer": {"kind": "skyrl", "skyrl": {"gpus_per_node": 4}}})
    assert config_identity(plain) == config_identity(other)
    assert len({config_identity(config) for config in (plain, chosen, larger)}) == 3


def test_skyrl_is_never_forked() -> None:
    with pytest.raises(ValueError, match=r"trainer.kind=skyrl needs trainer.start=exec"):
        RunConfig.model_validate({"trainer": {"kind": "skyrl", "start": "fork", "device": "cpu"}})
