"""`python -m flows.prefect_server --port 0 --ready-file FILE`: the run's own Prefect server, API and pages.

Used where the user names no server. Prefect would start one of its own kind too, but in the run's process
group: Ctrl-C then ends it first, and the run's last words have nobody to hear them. `own_server` starts this
one early, for it takes seconds, and shows the pages while the run lasts. Must not know the flow.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.errors import ModelUnavailable
from broker.server_child import end_with_parent, write_ready
from broker.server_process import ServerProcess

_START_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = "0.3"
_ENVIRONMENT: Final = {
    # Nothing is scheduled on this server, and nothing may leave the machine.
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT__SERVER_FINAL": "1",
}


class PrefectUnavailable(Exception):
    """No Prefect server answers."""


class OwnServer:
    """A server that starts in the background; `url` waits for it."""

    def __init__(self, home: Path) -> None:
        """`home`: PREFECT_HOME, made if it is not there."""
        home.mkdir(parents=True, exist_ok=True)
        self._process = ServerProcess(
            [sys.executable, "-m", "flows.prefect_server", "--parent", str(os.getpid())],
            what="the run's Prefect server",
            start_seconds=_START_SECONDS,
            health="/api/health",
            environment={**_ENVIRONMENT, "PREFECT_HOME": str(home)},
        )
        self._process.launch()

    def url(self) -> str:
        """`http://127.0.0.1:PORT`, once it answers. Raises PrefectUnavailable with the end of its log."""
        try:
            self._process.wait_until_ready()
        except ModelUnavailable as error:
            raise PrefectUnavailable(str(error)) from error
        return self._process.url

    def stop(self) -> None:
        """End it and return when it is gone."""
        self._process.stop()


@contextmanager
def own_server(home: Path) -> Generator[OwnServer]:
    """A Prefect server for the body, ended afterwards whatever happens."""
    server = OwnServer(home)
    try:
        yield server
    finally:
        server.stop()


class BriefRefusals:
    """ASGI layer: a refusal for the moment asks for another try in a moment.

    Prefect answers 503 when two of its SQLite transactions meet, which happens in ordinary runs; its client
    would wait two seconds and more for what is over in milliseconds.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                MutableHeaders(scope=message).setdefault("Retry-After", _RETRY_SECONDS)
            await send(message)

        await self._app(scope, receive, answer)


async def _serve(listener: socket.socket, ready: Path) -> None:
    import uvicorn
    from prefect.server.api.server import create_app

    app = BriefRefusals(create_app())
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event
        await asyncio.sleep(0.05)
    if server.started:
        write_ready(ready, listener.getsockname()[1])
    await serving


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.prefect_server")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--parent", type=int, default=None, help="end when this process ends")
    arguments = parser.parse_args()
    end_with_parent(arguments.parent)
    listener = socket.create_server(("127.0.0.1", arguments.port))
    # Read when Prefect is imported: the pages ask the API where they themselves came from.
    os.environ["PREFECT_UI_API_URL"] = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
    os.environ.pop("PREFECT_API_URL", None)
    asyncio.run(_serve(listener, arguments.ready_file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
