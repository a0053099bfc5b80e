"""Settings of the auxiliary reach its one endpoint; rules have none."""

import pytest

from flows.compose import ConfigError, compose_config
from harness_lab.exchange import Ledger
from harness_lab.manner import Manner
from tasks.auxiliary import open_chat
from tasks.config import config_identity

CHAT = ["auxiliary=chat", "auxiliary.base_url=http://127.0.0.1:9/v1", "auxiliary.model=m"]


def test_rules_open_no_endpoint() -> None:
    assert open_chat(compose_config([]).auxiliary) is None


@pytest.mark.spec("SCHED-07")
def test_an_endpoint_is_asked_first_in_the_configured_manner() -> None:
    settings = ["effort=low", "max_tokens=512", "length_parameter=max_completion_tokens"]
    more = [f"auxiliary.{setting}" for setting in (*settings, "response_format=json_object")]
    ledger = Ledger()
    endpoint = open_chat(compose_config([*CHAT, *more]).auxiliary, ledger)
    assert endpoint is not None
    assert endpoint.manner == Manner(
        response_format="json_object", length_parameter="max_completion_tokens", effort="low"
    )
    assert endpoint.max_tokens == 512
    assert endpoint.ledger is ledger
    assert endpoint.identity == "chat:m@http://127.0.0.1:9/v1 effort=low"


@pytest.mark.spec("SCHED-07")
@pytest.mark.parametrize("change", ["effort=low", "max_tokens=512", "model=n", "response_format=none"])
def test_what_can_change_an_answer_is_part_of_the_run_s_identity_and_prices_are_not(change: str) -> None:
    plain = config_identity(compose_config(CHAT))
    assert config_identity(compose_config([*CHAT, f"auxiliary.{change}"])) != plain
    assert config_identity(compose_config([*CHAT, "auxiliary.endpoint.prompt_price=3"])) == plain


@pytest.mark.parametrize(
    ("setting", "word"),
    [("max_tokens=10", "auxiliary.max_tokens"), ("response_format=xml", "auxiliary.response_format")],
)
def test_a_wrong_setting_is_named(setting: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        compose_config([*CHAT, f"auxiliary.{setting}"])
