"""The warm pool's size is a setting of the machine, not of the experiment."""

import pytest
from pydantic import ValidationError

from broker.sandbox.pool import SandboxPool, pooled
from tasks.config import RunConfig, SandboxConfig, config_identity
from tests.fixtures.fake_sandbox import FakeFactory


def test_the_size_of_the_pool_changes_no_identity() -> None:
    configs = [RunConfig(sandbox=SandboxConfig(pool=size)) for size in (0, 2, 16)]
    assert len({config_identity(config) for config in configs}) == 1
    assert config_identity(RunConfig(sandbox=SandboxConfig(kind="docker"))) != config_identity(configs[0])


def test_a_pool_for_one_role_alone_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"give 0 or at least 2"):
        SandboxConfig(pool=1)


def test_a_pool_of_none_is_the_factory_itself() -> None:
    inner = FakeFactory()
    assert pooled(inner, 0) is inner
    assert isinstance(pooled(inner, 2), SandboxPool)
