"""`python -m broker.engine --model DIR --port 0 --ready-file FILE`: serve one model on the loopback.

Owns the life of the serving process: it says when it is ready, and ends on SIGTERM or with its parent. Must
not know how it is started (`process`).
"""

import argparse
import asyncio
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from broker.engine.default_model import check_model_folder
from broker.errors import ModelUnavailable
from broker.server_child import end_with_parent, write_ready


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m broker.engine",
        description="Serve a model folder on 127.0.0.1 (token ids in and out).",
    )
    parser.add_argument("--model", required=True, type=Path, help="Hugging Face model folder")
    parser.add_argument("--name", default="", help="served model name (default: the folder's name)")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument(
        "--ready-file", type=Path, help='gets {"port": ..., "pid": ...} when requests are served'
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--max-batch", type=int, default=32, help="sequences generated at once")
    parser.add_argument("--max-length", type=int, default=2048, help="prompt plus completion, in tokens")
    parser.add_argument("--prefix-cache-mib", type=int, default=512, help="0 is off")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: all cores)")
    parser.add_argument("--fast-matmul", action="store_true", help="bfloat16 products on a CPU that has them")
    parser.add_argument("--parent", type=int, default=None, help="end when this process ends")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    check_model_folder(arguments.model)
    # Not before, so that a wrong flag or folder is answered at once.
    from broker.engine.engine import EmbeddedEngine
    from broker.engine.server import create_app

    engine = EmbeddedEngine(
        arguments.model,
        device=arguments.device,
        max_batch=arguments.max_batch,
        max_length=arguments.max_length,
        prefix_cache_bytes=arguments.prefix_cache_mib << 20,
        threads=arguments.threads,
        exact=not arguments.fast_matmul,
    )
    listener = socket.create_server(("127.0.0.1", arguments.port))
    app = create_app(engine, arguments.name or arguments.model.name)
    # The listener queues connections from here on, so the file may be there before the loop serves them.
    if arguments.ready_file:
        write_ready(arguments.ready_file, listener.getsockname()[1])
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    try:
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        engine.close()


def main() -> int:
    arguments = _arguments()
    end_with_parent(arguments.parent)
    # Before the server is up nothing needs an orderly end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        asyncio.run(_serve(arguments))
    except ImportError as error:
        print(
            f"the embedded engine needs {error.name}: call ./run setup, or install rinr[local]",
            file=sys.stderr,
        )
        return 1
    except (ModelUnavailable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
