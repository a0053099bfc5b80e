"""A run with `trainer.kind=skyrl` where no SkyRL is: told before anything starts."""

import importlib.util

import pytest

from flows.compose import compose_config
from flows.launch import check_inputs
from rl.errors import TrainingError


@pytest.mark.skipif(importlib.util.find_spec("skyrl") is not None, reason="SkyRL is installed here")
def test_a_run_that_would_train_with_an_absent_skyrl_is_refused_before_its_first_phase() -> None:
    with pytest.raises(TrainingError, match=r"not installed here: deploy/skyrl.md"):
        check_inputs(compose_config(["recipe=ci", "trainer.kind=skyrl", "trainer.start=exec"]))


def test_a_run_whose_worker_trains_elsewhere_needs_no_skyrl() -> None:
    check_inputs(
        compose_config(["recipe=ci", "trainer.kind=skyrl", "trainer.claim=worker", "trainer.start=exec"])
    )


def test_options_of_skyrl_are_given_on_the_command_line() -> None:
    config = compose_config(
        [
            "recipe=ci",
            "trainer.kind=skyrl",
            "trainer.start=exec",
            "trainer.skyrl.gpus_per_node=8",
            "trainer.skyrl.options={generator.inference_engine.enforce_eager:true}",
        ]
    )
    assert config.trainer.skyrl.options == {"generator.inference_engine.enforce_eager": True}
    assert config.trainer.skyrl.gpus == 8
