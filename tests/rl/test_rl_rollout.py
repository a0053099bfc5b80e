"""What a contract says of rewards and lengths reaches the rows and the report, with both trainers (RL-04)."""

import pytest
from rl_samples import call, episode, tiny_llama

from broker.budgets import Budgets
from broker.harness import Harness
from rl.contract import RewardKind, RlContract
from rl.embedded.job import _report
from rl.embedded.trainer import Trainer
from rl.errors import TrainingError
from rl.rollout import Rollout, make_rollout, plan_attempts
from rl.skyrl.settings import SkyrlSettings
from rl.skyrl.updates import update_report
from tests.fixtures.episodes import release
from tests.rl.test_skyrl_updates import NAMES
from verifier.task import Verdict

HALF = Verdict(format_valid=True, correct=False, answer="text", reason="below the pass mark", score=0.5)
FULL = Verdict(format_valid=True, correct=True, answer="text", reason="passes", score=0.75)


def rolled_out(reward: RewardKind, budgets: Budgets | None = None) -> tuple[RlContract, Rollout]:
    """One task, two attempts of one call, with R = 0.5 and 0.75."""
    contract = RlContract(updates=1, prompts_per_batch=1, attempts=2, reward=reward)
    tasks = release().split("train")[:1]
    attempts = plan_attempts(tasks, Harness(code="x"), contract, seed=1, step=1)
    spoken = [call(0, [1, 2], [3, 4 + number], [-1.0, -1.0]) for number in range(2)]
    results = [episode(tasks[0].id, n, [spoken[n]], verdict) for n, verdict in enumerate((HALF, FULL))]
    return contract, make_rollout(results, attempts, contract, budgets or Budgets(), 1.0)


@pytest.mark.spec("RL-04")
@pytest.mark.parametrize(("reward", "wanted"), [("verdict", [0.0, 1.0]), ("rubric", [0.5, 0.75])])
def test_rows_and_reports_of_both_trainers_have_the_reward_that_the_contract_names(
    reward: RewardKind, wanted: list[float]
) -> None:
    contract, rollout = rolled_out(reward)
    assert [row.rewards[-1] for row in rollout.batch.rows] == wanted
    mean = sum(wanted) / 2
    metrics = Trainer(tiny_llama(), contract).step(rollout.batch)
    assert _report(1, rollout, metrics, 0.0, contract.reward).reward == mean
    assert update_report(1, rollout, NAMES, contract, SkyrlSettings()).reward == mean


@pytest.mark.spec("HOST-03", "RL-05")
def test_a_rollout_is_held_to_its_episodes_budgets() -> None:
    with pytest.raises(TrainingError, match="the engine ignored its limits"):
        rolled_out("verdict", Budgets(completion_tokens=1))
