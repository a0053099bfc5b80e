"""The run's chat endpoint, opened once for all its roles. Must not know what is asked of it."""

from harness_lab.auxiliary import open_endpoint
from harness_lab.chat import ChatEndpoint
from harness_lab.exchange import Ledger
from harness_lab.manner import Manner
from tasks.config import AuxiliaryConfig


def open_chat(config: AuxiliaryConfig, ledger: Ledger | None = None) -> ChatEndpoint | None:
    """The configured endpoint; None where rules do everything."""
    if config.base_url is None or config.model is None:
        return None
    return open_endpoint(
        config.base_url,
        config.model,
        config.api_key_variable,
        config.endpoint,
        manner=Manner(
            response_format=config.response_format,
            length_parameter=config.length_parameter,
            effort=config.effort,
        ),
        max_tokens=config.max_tokens,
        ledger=ledger,
    )
