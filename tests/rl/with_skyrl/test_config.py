"""Our mapping arrives in SkyRL's own configuration, which SkyRL accepts."""

from pathlib import Path
from typing import Any

import pytest
import rl_jobs
from skyrl.train.config import SkyRLTrainConfig

from rl.contract import RlContract
from rl.skyrl.experiment import build_config
from rl.skyrl.mapping import contract_options, overrides
from rl.skyrl.settings import SkyrlSettings

PAPER = RlContract()


def job(contract: RlContract = PAPER, **settings: Any) -> Any:
    return rl_jobs.job(Path("/nowhere"), contract=contract, skyrl=SkyrlSettings(**settings))


def value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


@pytest.mark.spec("RL-01", "RL-02", "RL-10", "RL-11", "RL-12")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gpus_per_node": 8, "nodes": 2},
        {"gpus_per_node": 8, "tensor_parallel": 4},
        {"gpus_per_node": 4, "colocated": False, "engines": 2, "tensor_parallel": 2},
        {"options": {"trainer.policy.fsdp_config.cpu_offload": True, "generator.max_turns": 4}},
    ],
)
def test_skyrl_accepts_the_papers_recipe_and_every_value_arrives(settings: dict[str, Any]) -> None:
    wanted = overrides(job(**settings))
    config = build_config(wanted)
    for name, expected in wanted.items():
        assert value(config, name) == expected, name
    # What the step-wise objective also hangs on, and we leave as SkyRL has it.
    algorithm = config.trainer.algorithm
    assert algorithm.temperature == 1.0
    assert algorithm.off_policy_correction.tis_ratio_type is None
    assert algorithm.dynamic_sampling.type is None
    assert not algorithm.zero_variance_filter
    assert not algorithm.advantage_batch_normalize
    assert not config.generator.apply_overlong_filtering
    assert config.trainer.policy.optimizer_config.adam_betas == [0.9, 0.999]


@pytest.mark.spec("RL-10")
def test_skyrls_own_defaults_would_train_another_objective() -> None:
    """Why the mapping names what it names: these defaults differ from the contract."""
    default = SkyRLTrainConfig.from_cli_overrides({})
    differing = {
        name for name, expected in contract_options(job()).items() if value(default, name) != expected
    }
    assert {
        "trainer.algorithm.use_kl_loss",
        "trainer.hf_save_interval",
        "trainer.eval_interval",
        "generator.step_wise_trajectories",
        "trainer.resume_mode",
    } <= differing


@pytest.mark.parametrize("attempts", [1, 3, 5, 7, 16])
def test_any_number_of_attempts_has_micro_batches_that_skyrl_accepts(attempts: int) -> None:
    build_config(overrides(job(RlContract(attempts=attempts, prompts_per_batch=3))))
