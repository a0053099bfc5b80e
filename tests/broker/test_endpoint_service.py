"""A server of the user's own: asked as it is, checked for its model, and never ended by a run (HOST-10)."""

from typing import Any

import pytest

from broker.client import CompletionsClient
from broker.endpoint import EndpointSettings
from broker.errors import ModelUnavailable
from broker.inference import InferenceService, InferenceSpec
from broker.model import Sampling
from broker.service_log import ServiceLog
from tests.fixtures.episodes import TINY_MODEL, template
from tests.fixtures.stub_server import StubServer

ONE = Sampling(temperature=0.0, seed=0, max_tokens=64)


def service(log: ServiceLog, url: str, **changes: Any) -> InferenceService:
    settings = EndpointSettings(timeout_seconds=2, attempts=1)
    spec = InferenceSpec(kind="endpoint", base_url=url, settings=settings, **changes)
    return InferenceService(spec, TINY_MODEL, log)


@pytest.mark.spec("HOST-10", "HAND-04")
async def test_it_is_asked_and_outlives_the_service_that_asked(tmp_path: Any) -> None:
    prompt = template().encode([{"role": "user", "content": "hello"}])
    with StubServer() as stub:
        for _ in range(2):
            one = service(ServiceLog(tmp_path), stub.url, served_name=stub.model_name)
            client = await one.start()
            assert isinstance(client, CompletionsClient)
            assert (await client.complete(prompt, ONE)).token_ids
            assert await one.usable()
            assert one._process is None, "no process of ours"  # pyright: ignore[reportPrivateUsage]
            await one.stop()
            await one.stop()
            assert not one.alive
        assert stub.counts["completions"] == 2
    assert not (tmp_path / "services.jsonl").exists(), "nothing was started, nothing is released"


@pytest.mark.spec("HOST-10")
async def test_another_model_or_nobody_at_the_address_is_told_before_anything_is_asked(tmp_path: Any) -> None:
    with StubServer() as stub:
        url = stub.url
        with pytest.raises(ModelUnavailable, match=r"serves no model 'other' .it serves "):
            await service(ServiceLog(tmp_path), url, served_name="other").start()
        assert stub.counts.get("completions", 0) == 0
    with pytest.raises(ModelUnavailable, match="did not answer"):
        await service(ServiceLog(tmp_path), url, served_name="other").start()
