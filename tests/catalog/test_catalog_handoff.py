"""Handoffs: immutable requests, leases that expire, tokens that fence off stale workers."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from catalog.database import Catalog, HandoffError
from catalog.digest import digest_json
from catalog.handoff import MAX_ATTEMPTS

ROOT = Path(__file__).parents[2]
REQUEST: dict[str, Any] = {"program": "sha256:p", "model": "sha256:m", "contract": {"updates": 5}}


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(tmp_path: Path, clock: Clock) -> Catalog:
    made = Catalog(tmp_path / "catalog.sqlite", clock=clock)
    made.start_run("run", "ci", {}, {})
    return made


@pytest.mark.spec("HAND-01")
def test_a_request_is_named_by_its_content_and_published_once(catalog: Catalog) -> None:
    digest = catalog.publish_request("run", 1, REQUEST)
    assert digest == digest_json(REQUEST)
    assert catalog.publish_request("run", 1, dict(reversed(REQUEST.items()))) == digest
    assert catalog.request(digest) == REQUEST
    other = catalog.publish_request("run", 1, REQUEST | {"model": "sha256:other"})
    assert other != digest
    assert catalog.request(digest) == REQUEST


@pytest.mark.spec("HAND-02")
def test_a_request_is_leased_to_one_worker_at_a_time(catalog: Catalog) -> None:
    digest = catalog.publish_request("run", 1, REQUEST)
    held = catalog.claim("first", 60)
    assert held is not None
    assert (held.request, held.token, held.worker) == (digest, 1, "first")
    assert catalog.claim("second", 60) is None
    assert catalog.claim("second", 60, digest) is None
    with pytest.raises(HandoffError, match="no handoff request"):
        catalog.claim("second", 60, "sha256:" + "0" * 64)


@pytest.mark.spec("HAND-02")
def test_a_lost_workers_lease_expires_and_its_token_is_fenced_off(catalog: Catalog, clock: Clock) -> None:
    digest = catalog.publish_request("run", 1, REQUEST)
    lost = catalog.claim("lost", 60)
    clock.advance(61)
    taken = catalog.claim("heir", 60)
    assert lost is not None
    assert taken is not None
    assert taken.token == 2
    for stale in (
        lambda: catalog.publish_result(digest, lost.token, {"by": "lost"}),
        lambda: catalog.renew(digest, lost.token, 60),
    ):
        with pytest.raises(HandoffError, match=r"token 1 .* is stale .*'heir'"):
            stale()
    assert catalog.result(digest) is None
    catalog.publish_result(digest, taken.token, {"by": "heir"})
    assert catalog.result(digest) == {"by": "heir"}


@pytest.mark.spec("HAND-02")
def test_a_worker_that_comes_back_under_its_name_takes_its_own_lease_over(catalog: Catalog) -> None:
    request = catalog.publish_request("run", 1, REQUEST)
    first = catalog.claim("run r", 60.0, request)
    again = catalog.claim("run r", 60.0, request)
    assert first is not None
    assert again is not None
    assert again.token == first.token + 1
    assert catalog.claim("another", 60.0, request) is None
    with pytest.raises(HandoffError, match="stale"):
        catalog.publish_result(request, first.token, {"model": "x"})


@pytest.mark.spec("HAND-02")
def test_a_renewed_lease_does_not_expire(catalog: Catalog, clock: Clock) -> None:
    digest = catalog.publish_request("run", 1, REQUEST)
    held = catalog.claim("worker", 60)
    assert held is not None
    for _ in range(3):
        clock.advance(50)
        catalog.renew(digest, held.token, 60)
        assert catalog.claim("other", 60) is None
    catalog.release(digest, held.token)
    assert catalog.claim("other", 60) is not None


@pytest.mark.spec("HAND-02")
def test_a_request_has_one_result_and_is_not_claimed_after_it(catalog: Catalog, clock: Clock) -> None:
    digest = catalog.publish_request("run", 1, REQUEST)
    with pytest.raises(HandoffError, match="is stale"):
        catalog.publish_result(digest, 1, {"export": "sha256:e"})
    held = catalog.claim("worker", 60)
    assert held is not None
    catalog.publish_result(digest, held.token, {"export": "sha256:e", "tests": (1, 2)})
    catalog.publish_result(digest, held.token, {"tests": [1, 2], "export": "sha256:e"})
    with pytest.raises(HandoffError, match="has another result"):
        catalog.publish_result(digest, held.token, {"export": "sha256:f"})
    clock.advance(1000)
    assert catalog.claim("other", 60) is None
    assert catalog.result(digest) == {"export": "sha256:e", "tests": [1, 2]}


@pytest.mark.spec("HAND-02")
def test_a_request_that_loses_every_worker_is_given_up(catalog: Catalog, clock: Clock) -> None:
    catalog.publish_request("run", 1, REQUEST)
    for attempt in range(MAX_ATTEMPTS):
        held = catalog.claim("worker", 60)
        assert held is not None
        assert held.token == attempt + 1
        clock.advance(61)
    assert catalog.claim("worker", 60) is None


def test_the_oldest_open_request_is_claimed_first(catalog: Catalog, clock: Clock) -> None:
    published: list[str] = []
    for cycle in range(3):
        published.append(catalog.publish_request("run", cycle, REQUEST | {"cycle": cycle}))
        clock.advance(1)
    claims = [catalog.claim("worker", 60) for _ in range(4)]
    assert [claim and claim.request for claim in claims] == [*published, None]


CLAIMER = """
import json, sys
from catalog.database import Catalog
catalog = Catalog(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
mine = []
while (claim := catalog.claim("worker", 600)) is not None:
    mine.append([claim.request, claim.token])
print(json.dumps(mine))
"""


@pytest.mark.spec("HAND-02")
def test_workers_that_claim_at_the_same_time_never_share_a_request(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    catalog = Catalog(path)
    catalog.start_run("run", "ci", {}, {})
    requests = {catalog.publish_request("run", 1, {"number": number}) for number in range(24)}
    command = [sys.executable, "-c", CLAIMER, str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(3)]
    for process in workers:
        assert process.stdout.readline() == "ready\n"
    for process in workers:
        process.stdin.write("go\n")
        process.stdin.flush()
    got = [tuple(pair) for process in workers for pair in json.loads(process.communicate(timeout=60)[0])]
    assert sorted(got) == sorted((request, 1) for request in requests)
