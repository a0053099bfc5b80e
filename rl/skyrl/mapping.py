"""The RL contract as SkyRL's configuration: a plain mapping of SkyRL's own names to values.

What makes the objective is fixed here and cannot be set otherwise (RL-02, RL-10, RL-11, RL-12). Needs no
SkyRL; `rl.skyrl.experiment` builds SkyRL's own classes from it. Must not know episodes.
"""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from rl.errors import TrainingError
from rl.job_spec import Job
from rl.manifest import read_config
from rl.skyrl.settings import Option

EXPORTS: Final = "exports"
"""Folder of SkyRL's own exports, inside the job's folder."""
LOGS: Final = "logs"
_DELTA: Final = 1e-6


def skyrl_folder(job: Job) -> Path:
    """Everything that SkyRL itself writes."""
    return job.folder / "skyrl"


def contract_options(job: Job) -> dict[str, Option]:
    """What the contract and our bookkeeping fix. Raises `TrainingError` for what SkyRL cannot do."""
    contract = job.contract
    if contract.advantage_delta != _DELTA:
        raise TrainingError(
            f"rl.advantage_delta={contract.advantage_delta} cannot be had with trainer.kind=skyrl, whose "
            f"advantage has {_DELTA}: leave it out"
        )
    return {
        "trainer.algorithm.advantage_estimator": "grpo",
        "trainer.algorithm.grpo_norm_by_std": True,
        "trainer.algorithm.policy_loss_type": "regular",
        "trainer.algorithm.loss_reduction": "token_mean",
        "trainer.algorithm.eps_clip_low": contract.clip_low,
        "trainer.algorithm.eps_clip_high": contract.clip_high,
        # SkyRL's default is a KL loss.
        "trainer.algorithm.use_kl_loss": False,
        "trainer.algorithm.use_kl_in_reward": False,
        "trainer.policy.optimizer_config.lr": contract.learning_rate,
        "trainer.policy.optimizer_config.weight_decay": contract.weight_decay,
        "trainer.policy.optimizer_config.max_grad_norm": contract.max_grad_norm,
        "trainer.policy.optimizer_config.num_warmup_steps": 0,
        "trainer.policy.optimizer_config.scheduler": "constant_with_warmup",
        # One epoch over a row for each prompt of each update: SkyRL saves at the end of every epoch.
        "trainer.epochs": contract.epochs,
        "trainer.update_epochs_per_batch": 1,
        "trainer.max_training_steps": contract.updates,
        "trainer.train_batch_size": contract.prompts_per_batch,
        "trainer.policy_mini_batch_size": contract.prompts_per_batch,
        "trainer.critic_mini_batch_size": contract.prompts_per_batch,
        "generator.n_samples_per_prompt": contract.attempts,
        "generator.step_wise_trajectories": True,
        "generator.merge_stepwise_output": False,
        "generator.sampling_params.temperature": contract.temperature,
        "generator.sampling_params.top_p": contract.top_p,
        "generator.sampling_params.logprobs": 1,
        "trainer.eval_interval": -1,
        "trainer.eval_before_train": False,
        "trainer.hf_save_interval": contract.updates,
        "trainer.ckpt_interval": -1,
        "trainer.resume_mode": "none",
        "trainer.seed": job.seed,
        "trainer.policy.model.path": str(job.base_model),
        "trainer.export_path": str(skyrl_folder(job) / EXPORTS),
    }


def overrides(job: Job) -> dict[str, Option]:
    """The whole mapping. Raises `TrainingError` for an option that the contract fixes."""
    settings = job.skyrl
    assert settings is not None, "only a job with settings for SkyRL comes here"
    fixed = contract_options(job)
    if taken := sorted(settings.options.keys() & fixed.keys()):
        raise TrainingError(
            f"trainer.skyrl.options must not set {taken[0]}: the RL contract and the job decide it"
        )
    _check_division(job)
    gpus, flash = settings.gpus_per_node, _flash_attention()
    rows = settings.micro_batch_of(job.contract.episodes_per_batch)
    return {
        **fixed,
        "trainer.strategy": "fsdp",
        "trainer.placement.colocate_all": settings.colocated,
        "trainer.placement.policy_num_nodes": settings.nodes,
        "trainer.placement.policy_num_gpus_per_node": gpus,
        # Neither exists; SkyRL reads their counts all the same.
        "trainer.placement.critic_num_gpus_per_node": gpus,
        "trainer.placement.ref_num_gpus_per_node": gpus,
        "generator.inference_engine.num_engines": settings.engine_count,
        "generator.inference_engine.tensor_parallel_size": settings.tensor_parallel,
        "generator.inference_engine.gpu_memory_utilization": settings.memory_share,
        "generator.inference_engine.engine_init_kwargs.max_model_len": _context(job),
        "generator.inference_engine.enable_ray_prometheus_stats": False,
        "generator.sampling_params.max_generate_length": job.budgets.completion_tokens,
        # No prompt of ours goes through SkyRL's own filter; the two lengths must agree.
        "generator.max_input_length": job.budgets.context_tokens,
        "trainer.max_prompt_length": job.budgets.context_tokens,
        "trainer.micro_train_batch_size_per_gpu": rows,
        "trainer.micro_forward_batch_size_per_gpu": rows,
        "trainer.flash_attn": flash,
        "trainer.remove_microbatch_padding": flash,
        "trainer.ckpt_path": str(skyrl_folder(job) / "checkpoints"),
        "trainer.log_path": str(skyrl_folder(job) / LOGS),
        "trainer.logger": "console",
        "trainer.enable_ray_gpu_monitor": False,
        "trainer.print_example_interval": 0,
        "data.dataloader.num_workers": 0,
        **settings.options,
    }


def _check_division(job: Job) -> None:
    """SkyRL drops prompts whose attempts do not divide over the GPUs, and our batch with them."""
    assert job.skyrl is not None
    episodes, gpus = job.contract.episodes_per_batch, job.skyrl.policy_gpus
    if episodes % gpus:
        raise TrainingError(
            f"rl.prompts_per_batch x rl.attempts = {episodes} episodes do not divide over {gpus} GPUs: "
            "change one of them, or trainer.skyrl.gpus_per_node"
        )


def _context(job: Job) -> int:
    """Longest sequence of the engine: the budgets' context, or what the model was made for."""
    config: Mapping[str, object] = read_config(job.base_model)
    positions = config.get("max_position_embeddings")
    context = job.budgets.context_tokens
    return min(context, positions) if isinstance(positions, int) else context


def _flash_attention() -> bool:
    """By its distribution: a folder of that name may be a stub that only satisfies SkyRL's imports."""
    try:
        metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        return False
    return True
