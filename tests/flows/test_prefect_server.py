"""The run's own Prefect server: it serves, it refuses briefly, and it ends when it should and not before."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from flows.prefect_server import BriefRefusals, PrefectUnavailable, own_server

HOME = Path(os.environ["PREFECT_HOME"])
HOLD = (
    "import time; from pathlib import Path; from flows.prefect_server import own_server\n"
    "with own_server(Path({home!r})) as server:\n"
    "    Path({note!r}).write_text(server.url()); time.sleep(60)"
)


@pytest.mark.slow
def test_it_serves_api_and_pages_and_is_gone_afterwards() -> None:
    with own_server(HOME) as server:
        url = server.url()
        assert httpx.get(f"{url}/api/health").status_code == 200
        assert "<html" in httpx.get(url, follow_redirects=True).text
        # The pages call the API where they came from, not on Prefect's customary port.
        assert httpx.get(f"{url}/ui-settings").json()["api_url"] == f"{url}/api"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/api/health")


@pytest.mark.slow
def test_it_does_not_hear_ctrl_c_and_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "url"
    script = HOLD.format(home=str(HOME), note=str(note))
    parent = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        url = _wait(lambda: note.exists() and note.read_text())
        # Ctrl-C, without the parent hearing it: what is left of its group is what the terminal would reach.
        assert _group(parent.pid) == [parent.pid]
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        _wait(lambda: not _answers(url))
    finally:
        parent.kill()
        parent.wait()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "prefect.db").mkdir()
    with (
        own_server(home) as server,
        pytest.raises(PrefectUnavailable, match="the run's Prefect server ended"),
    ):
        server.url()


@pytest.mark.parametrize(("status", "wait"), [(200, None), (404, None), (503, "0.3")])
def test_only_a_refusal_for_the_moment_asks_for_another_try(status: int, wait: str | None) -> None:
    async def answer(_: object) -> PlainTextResponse:
        return PlainTextResponse("", status_code=status)

    client = TestClient(BriefRefusals(Starlette(routes=[Route("/", answer)])))
    assert client.get("/").headers.get("Retry-After") == wait


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/health").status_code == 200
    except httpx.TransportError:
        return False


def _group(leader: int) -> list[int]:
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[2] == str(leader)
    ]


def _wait(look: Callable[[], str | bool], seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return str(seen)
