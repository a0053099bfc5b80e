import pytest
from pydantic import ValidationError

from rl.contract import RlContract


@pytest.mark.spec("RL-01", "RL-10")
def test_the_default_contract_is_the_papers_recipe() -> None:
    contract = RlContract()
    assert (contract.updates, contract.prompts_per_batch, contract.attempts) == (30, 8, 8)
    assert contract.episodes_per_batch == 64
    assert (contract.learning_rate, contract.epochs, contract.kl) == (1e-6, 1, 0.0)


@pytest.mark.spec("RL-02")
@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.7), ("top_p", 0.95), ("thinking", True), ("replies", 1)]
)
def test_another_sampling_contract_is_refused_in_one_line_that_names_the_rule(
    name: str, value: object
) -> None:
    with pytest.raises(ValidationError) as caught:
        RlContract.model_validate({name: value})
    (error,) = caught.value.errors()
    assert "RL-02" in error["msg"]
    assert name in error["msg"]
    assert "\n" not in error["msg"]


@pytest.mark.spec("RL-10")
@pytest.mark.parametrize(("name", "value"), [("epochs", 2), ("kl", 0.1)])
def test_another_objective_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match="RL-10"):
        RlContract.model_validate({name: value})


def test_the_digest_follows_every_number() -> None:
    assert RlContract().digest == RlContract().digest
    assert RlContract().digest != RlContract(attempts=16).digest
