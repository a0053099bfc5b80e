"""What runs in a sandbox's worker process: tool code (execution) or the harness program (controller).

The worker shares its process with untrusted code, so nothing it reports is trusted: the supervisor decides
clocks, losses and output. Standard library only. Must not know the host's protocol beyond its frames.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import sys
import types
from _thread import allocate_lock

from broker.sandbox.protocol import ProtocolError, Reader, encode, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGINT, signal
    from typing import Any, NoReturn
else:
    from _signal import SIGINT, signal

MAX_ERROR = 8_192
"""Characters of a traceback that are kept: a quarter of its head, the rest from its tail."""

_RESERVE = 4 << 20

# Bound now: the code that runs here may replace any attribute of these modules.
_getpid, _exit, _dup2 = os.getpid, os._exit, os.dup2  # pyright: ignore[reportPrivateUsage]


def clip_error(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MAX_ERROR:
        return text
    return text[: MAX_ERROR // 4] + "\n[...]\n" + text[-MAX_ERROR * 3 // 4 :]


def describe(error: BaseException, sources: dict[str, str]) -> str:
    """The traceback as far as it lies in the caller's own code, then the exception itself."""
    try:
        import linecache
        import traceback

        for name, text in sources.items():
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        report = traceback.TracebackException.from_exception(error)
        report.stack[:] = [frame for frame in report.stack if frame.filename in sources]
        lines = report.format(chain=False) if report.stack else report.format_exception_only()
        return clip_error("".join(lines).rstrip())
    except Exception:
        return type(error).__name__


def _reserve() -> bytes:
    """Address space to describe an error in when the code took all the rest.

    Empty while variables hold nearly all, for then the next call needs what is left.
    """
    try:
        room = bytes(2 * _RESERVE)  # which, unlike a bytearray, touches none of its pages
        del room
        return bytes(_RESERVE)
    except MemoryError:
        return b""


class _Interrupt:
    """SIGINT handler that raises only while untrusted code runs, so that a late signal harms nobody."""

    armed = False

    def __call__(self, number: int, frame: Any) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def _fresh_streams(null: int, output: int) -> None:
    """Whatever the last call did to descriptors 0 to 2 and to `sys`, the next one has working ones.

    Needs no further descriptor: the code may hold all that there are.
    """
    _dup2(null, 0)
    _dup2(output, 1)
    _dup2(output, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115


def _exit_error(error: SystemExit) -> str:
    return "" if error.code in (None, 0) else clip_error(f"SystemExit: {error.code}")


def run_execution(requests: int, replies: int, output: int) -> NoReturn:
    """Run each requested code in one namespace that lives as long as this process (HOST-09)."""
    own_pid = _getpid()
    null = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, output)
    interrupt = _Interrupt()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.path.append("/opt/packages")
    # These come from `site`, which is skipped for speed.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    sources: dict[str, str] = {}
    reserve = b""
    reader = Reader(requests)
    while True:
        frame = reader.read()
        code: str = frame["code"]
        signal(SIGINT, interrupt)
        _fresh_streams(null, output)
        name = f"<execute {len(sources) + 1}>"
        namespace: dict[str, Any] = {}  # of call 0, which is the supervisor's own rehearsal
        if frame["id"]:
            sources[name] = code
            namespace = module.__dict__
        error = ""
        # Not in a rehearsal: what it gave back would be reused later, and so touched page by page.
        reserve = reserve or (_reserve() if frame["id"] else b"")
        try:
            try:
                interrupt.armed = True
                exec(compile(code, name, "exec"), namespace)
            finally:
                interrupt.armed = False
        except SystemExit as caught:
            error = _exit_error(caught)
        except BaseException as caught:
            interrupt.armed = False
            reserve = b""
            error = describe(caught, sources)
        if _getpid() != own_pid:  # a fork that the code made came out at this end
            _exit(0)
        for stream in (sys.stdout, sys.stderr):
            try:  # noqa: SIM105 - see supervisor
                stream.flush()
            except Exception:
                pass
        write_all(replies, encode({"id": frame["id"], "error": error}))


class Api:
    """What the program holds as `api`: three blocking calls to the host (HOST-01), and what is left."""

    def __init__(self, reader: Reader, replies: int, budgets: dict[str, Any]) -> None:
        lock = allocate_lock()
        names = ("model_calls", "tool_calls", "user_turns", "context_tokens", "seconds")
        left: dict[str, Any] = {name: budgets.get(name) for name in names}
        notice: list[str | None] = [None]

        def ask(frame: dict[str, Any]) -> Any:
            data = encode(frame)
            with lock:
                write_all(replies, data)
                answer = reader.read()
            left.update(answer.get("left", {}))
            notice[0] = answer.get("notice")
            return answer["value"]

        self._ask = ask
        self._left = left
        self._notice = notice

    @property
    def left(self) -> dict[str, Any]:
        """What is left of the budgets, as of the latest answer."""
        return dict(self._left)

    @property
    def notice(self) -> dict[str, str] | None:
        """The budget notice as a marked message, once a budget is nearly used up; else None."""
        text = self._notice[0]
        return None if text is None else {"role": "user", "content": text, "source": "harness"}

    def generate(self, messages: Any) -> Any:
        return self._ask({"op": "generate", "messages": messages})

    def execute(self, code: Any) -> Any:
        return self._ask({"op": "execute", "code": code})

    def submit(self, text: Any) -> Any:
        """Returns a reply while the interaction goes on; after the last answer the host ends the program."""
        return self._ask({"op": "submit", "text": text})


def run_program(requests: int, replies: int, output: int) -> NoReturn:
    """Wait for the harness program, load it, call its `run(task, api)`, report how that ended."""
    os.close(output)
    reader = Reader(requests)
    while True:
        start = reader.read()
        end = _run_program(start["program"], start["task"], reader, replies)
        try:
            write_all(replies, encode(end))
        except (OSError, ProtocolError):
            _exit(1)
        if start["op"] != "rehearse":  # the supervisor's own, before anybody waits
            _exit(0)


def _run_program(program: str, task: dict[str, Any], reader: Reader, replies: int) -> dict[str, Any]:
    name = "<harness>"
    module = types.ModuleType("harness")
    sys.modules["harness"] = module
    # A program that asks the keyboard is told nothing instead of being stopped.
    builtins.input = lambda prompt="", /: ""
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    try:
        exec(compile(program, name, "exec"), module.__dict__)
        run = module.__dict__.get("run")
        if callable(run):
            run(task, Api(reader, replies, task.get("budgets", {})))
        else:
            text = "the program defines no function run(task, api)"
            return {"op": "error", "kind": "protocol", "traceback": text}
    except SystemExit as caught:
        if text := _exit_error(caught):
            return {"op": "error", "kind": "crash", "traceback": text}
    except BaseException as caught:
        return {"op": "error", "kind": "crash", "traceback": describe(caught, {name: program})}
    return {"op": "end"}
