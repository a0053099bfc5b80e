"""Fixtures that several files of this room use."""

from collections.abc import AsyncIterator

import pytest

from broker.errors import SandboxLost
from broker.sandbox.base import SandboxFactory
from broker.sandbox.factory import open_factory
from tests.fixtures.sandboxes import BACK_ENDS, CACHE, real_shell_runtime


@pytest.fixture(params=BACK_ENDS)
async def shelled(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    """A factory of each back end whose sandboxes have a shell."""
    try:
        factory = open_factory(request.param, real_shell_runtime(), CACHE)
    except SandboxLost as error:
        pytest.skip(str(error))
    yield factory
    await factory.close()
