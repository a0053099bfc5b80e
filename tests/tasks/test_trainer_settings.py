import pytest
from pydantic import ValidationError

from flows.compose import compose_config
from tasks.config import TrainerConfig, config_identity

NEW = {"precision": "bfloat16", "packing": "rows", "token_budget": 4_096, "checkpointing": 3}


@pytest.mark.parametrize("name", NEW)
def test_how_the_trainer_computes_is_part_of_a_runs_identity_only_where_it_was_changed(name: str) -> None:
    plain = compose_config([])
    changed = compose_config([f"trainer.{name}={NEW[name]}"])
    assert getattr(changed.trainer, name) == NEW[name]
    assert config_identity(changed) != config_identity(plain)
    default = TrainerConfig.model_fields[name].default
    assert config_identity(compose_config([f"trainer.{name}={default}"])) == config_identity(plain)


def test_bfloat16_on_a_named_cpu_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValidationError, match=r"trainer.precision=bfloat16 needs a GPU"):
        TrainerConfig(precision="bfloat16", device="cpu")
    with pytest.raises(ValidationError, match="checkpointing"):
        TrainerConfig(checkpointing=-1)
