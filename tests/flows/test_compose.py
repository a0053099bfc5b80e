"""Settings: recipes carry the specified numbers, and a wrong setting gives one line that names the fix."""

from pathlib import Path

import pytest
import yaml

from flows.compose import ConfigError, compose_config, validate


@pytest.mark.spec("SCHED-03", "HOST-03", "RL-01", "RL-10")
def test_the_paper_recipe_has_the_numbers_of_the_specification() -> None:
    config = compose_config(["recipe=paper"])
    schedule, budgets, rl = config.schedule, config.budgets, config.rl
    assert (schedule.cycles, schedule.steps, schedule.interactions, schedule.candidates) == (3, 3, 16, 3)
    assert (budgets.context_tokens, budgets.completion_tokens) == (24_576, 4_096)
    assert (budgets.model_calls, budgets.tool_calls, budgets.user_turns) == (9, 9, 1)
    assert (budgets.tool_response_tokens, budgets.tool_history_tokens) == (2_048, 8_192)
    assert (budgets.tool_seconds, budgets.seconds) == (60, 900)
    assert (rl.updates, rl.prompts_per_batch, rl.attempts, rl.learning_rate) == (30, 8, 8, 1e-6)
    assert config.concurrency == 64


@pytest.mark.spec("SCHED-03")
@pytest.mark.parametrize("recipe", ["paper", "laptop", "ci"])
def test_every_recipe_composes_and_can_be_overridden(recipe: str) -> None:
    config = compose_config([f"recipe={recipe}", "seed=7", "budgets.seconds=33", "schedule.steps=2"])
    assert (config.seed, config.budgets.seconds, config.schedule.steps) == (7, 33, 2)
    assert config.recipe_name == recipe


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["sead=3"], "unknown setting 'sead'; did you mean seed?"),
        (["budgets.second=3"], "did you mean budgets.seconds?"),
        (["seed"], "write NAME=VALUE"),
        (["seed=-1"], "setting seed:"),
        (["recipe=big"], "big"),
        (["rl.temperature=0.5"], "RL-02"),
        (["model=endpoint", "model.name=x", "model.base_url=null"], "needs model.base_url"),
        (["model=chat"], "add model.base_url=... model.served_name=..."),
        (["run_id=../up"], "setting run_id:"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_the_fix(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(overrides)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_deployment_runs_the_laptop_recipe_as_it_is() -> None:
    deployed = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())["deployments"]
    [cycle] = [entry for entry in deployed if entry["name"] == "cycle"]
    assert validate(cycle["parameters"]["config"]) == compose_config(["recipe=laptop"])


def test_a_refused_combination_does_not_print_the_whole_configuration() -> None:
    with pytest.raises(ConfigError, match="mode=model") as caught:
        compose_config(["recipe=ci", "harness=h.py"])
    assert len(str(caught.value)) < 200
