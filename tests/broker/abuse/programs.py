"""What a hostile harness program tries, and the exact outcome: the table that `test_abuse_controller` runs.

The host answers every request. An outcome is the program's last frame: "end", or the kind of its error and a
pattern that the traceback must contain; or silence, until the host's own clock ends the episode.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.broker.abuse.cases import TRY, frame


@dataclass(frozen=True)
class Program:
    """One hostile program and what the host must hear of it."""

    name: str
    code: str
    last: tuple[str, str] | str
    """(kind, pattern), "end" or "silence"."""
    before: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Every frame before the last one, exactly."""


ASKED: dict[str, Any] = {"op": "generate", "messages": []}
CLOSED = "^the program closed its channel to the host$"
ENDED = "^the program's process %s without finishing run\\(task, api\\)$"


def run(body: str, head: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"import os, sys, time\n{head}\ndef run(task, api):\n{lines}"


def forging(payload: bytes, then: str = "api.generate([])") -> str:
    """Write to every descriptor; only the one that leads to process 1 takes it."""
    body = (
        "for name in os.listdir('/proc/self/fd'):\n"
        "    if int(name) > 2:\n"
        f"        try: os.write(int(name), {payload!r})\n"
        "        except OSError: pass\n"
    )
    return run(body + then)


def malformed(name: str, payload: bytes, why: str) -> Program:
    return Program(f"forged frame: {name}", forging(payload), ("protocol", why))


def attempts(*codes: str) -> str:
    """A program that submits how each attempt ended."""
    return run("api.submit(' '.join(tried(code) for code in codes))", f"{TRY}\ncodes = {list(codes)!r}")


def submitted(text: str) -> list[dict[str, Any]]:
    return [{"op": "submit", "text": text}]


STREAMS = [
    Program(
        "T05: prints, reads standard input, closes stdout, then generates and submits",
        run(
            'print(\'{"op": "submit", "text": "forged"}\', flush=True)\n'
            "print('x' * 1_000_000)\n"
            "sys.stdin.read(); input('name? ')\n"
            "os.write(1, b'raw'); os.write(2, b'raw')\n"
            "sys.stdout.close(); os.close(1); os.close(0); sys.stderr = None\n"
            "api.submit(api.generate([]))"
        ),
        "end",
        [ASKED, *submitted("text")],
    ),
    Program("endless output", run("while True: print('x' * 1000)"), "silence"),
    Program(
        "replaces json, os.write and print",
        run(
            "import builtins, json\njson.dumps = json.loads = os.write = os.read = os.getpid = None\n"
            "builtins.print = None\napi.submit(api.generate([]))"
        ),
        "end",
        [ASKED, *submitted("text")],
    ),
    Program(
        "holds every descriptor",
        run(
            "kept = []\ntry:\n    while True: kept.append(os.open('/dev/null', 0))\n"
            "except OSError: api.submit(api.generate([]))"
        ),
        "end",
        [ASKED, *submitted("text")],
    ),
]

CHANNEL = [
    malformed("giant length", b"\xff\xff\xff\xff", "malformed request: frame of 4294967295 bytes"),
    malformed("one byte too long", (1 + (1 << 20)).to_bytes(4, "big"), "malformed request: frame of 1048577"),
    malformed("no object", frame(b"[]"), "malformed request: not an object"),
    malformed("deep JSON", frame(b'{"op":' + b"[" * 5000 + b"]" * 5000 + b"}"), "malformed request: nested"),
    malformed(
        "deep enough to end a naive reader",
        frame(b'{"op":' + b"[" * 60_000),
        "malformed request: more than 8192",
    ),
    malformed(
        "unfolding JSON", frame(b'{"op":[' + b"{}," * 9000 + b"1]}"), "malformed request: more than 8192"
    ),
    malformed("pickle", b"\x80\x04\x95\x1e\x00\x00\x00pickle", "malformed request: frame of"),
    malformed("text", b"GET / HTTP/1.1\r\n\r\n", "malformed request: frame of"),
    malformed("duplicate key", frame(b'{"op":"end","op":"submit"}'), "malformed request: duplicate key"),
    malformed("NaN", frame(b'{"op":"generate","messages":NaN}'), "malformed request: NaN"),
    malformed(
        "infinity", frame(b'{"op":"generate","messages":1e999}'), "malformed request: number out of range"
    ),
    malformed(
        "a long number", frame(b'{"op":' + b"7" * 999 + b"}"), "malformed request: number of more than"
    ),
    malformed(
        "invalid UTF-8", frame(b'{"op":"submit","text":"\xff"}'), "malformed request: not strict UTF-8"
    ),
    malformed(
        "lone surrogate", frame(b'{"op":"submit","text":"\\ud800"}'), "malformed request: not strict UTF-8"
    ),
    malformed(
        "raw control character", frame(b'{"op":"submit","text":"\x1b"}'), "malformed request: Invalid control"
    ),
    malformed("an unknown operation", frame(b'{"op":"grade"}'), "^unknown request 'grade'$"),
    malformed("a terminal's commands", frame(b'{"op":"\\u001b[2J"}'), r"^unknown request '\\x1b\[2J'$"),
    malformed("the host's answer", frame(b'{"op":"result","value":1}'), "^unknown request 'result'$"),
    malformed("readiness", frame(b'{"op":"ready"}'), "^unknown request 'ready'$"),
    malformed("a sign of life", frame(b'{"op":"pong"}'), "^unknown request 'pong'$"),
    malformed("an end with more in it", frame(b'{"op":"end","value":1}'), "^unknown request 'end'$"),
    malformed(
        "the mark of process 1", b"\x01" + frame(b'{"op":"end"}')[1:], "malformed request: frame of 16777228"
    ),
    malformed(
        "an observation", frame(b'{"op":"observation","stdout":"","x":0}'), "^unknown request 'observation'$"
    ),
    malformed(
        "sampling of its own",
        frame(b'{"op":"generate","messages":[],"temperature":2}'),
        "^unknown request 'generate'$",
    ),
    malformed(
        "an error of another kind", frame(b'{"op":"error","kind":"ours","traceback":""}'), "^bad error$"
    ),
    malformed("no operation", frame(b"{}"), "^unknown request 'None'$"),
    Program(
        "two requests at once",
        forging(frame(b'{"op":"generate","messages":[]}') + frame(b'{"op":"submit","text":"a"}')),
        ("protocol", "^a second request before the answer to the first$"),
        [ASKED],
    ),
    Program(
        "an end that is written otherwise",
        forging(frame(b'{ "op" : "end" }'), then="pass"),
        "end",
    ),
    Program("half a frame", forging(b"\x00\x00\x01\x00{", then="while True: time.sleep(9)"), "silence"),
    Program(
        "half a frame and the end",
        forging(b"\x00\x00\x01\x00{", then="os._exit(0)"),
        ("crash", ENDED % "exited with code 0"),
    ),
    Program(
        "closes every descriptor",
        run("os.closerange(0, 10_000)\napi.generate([])"),
        ("crash", ENDED % "exited with code 1"),
    ),
    Program(
        "closes every descriptor and sleeps",
        run("os.closerange(0, 10_000)\ntime.sleep(600)"),
        ("crash", CLOSED),
    ),
    Program(
        "another program in its place",
        run(
            "program = '/usr/bin/python%d.%d' % sys.version_info[:2]\n"
            "os.execv(program, [program, '-ISc', 'import time; time.sleep(600)'])"
        ),
        ("crash", CLOSED),
    ),
    Program(
        "a request that is no JSON", run("api.generate(object())"), ("crash", "object has no form in JSON")
    ),
    Program(
        "more in a request than one may hold",
        run("api.generate([[]] * 9000)"),
        ("crash", "more than 8192 values"),
    ),
    Program("a request of 2 MB", run("api.execute('x' * 2_000_000)"), ("crash", "the limit is 1048576")),
    Program("sampling as an argument", run("api.generate([], temperature=2)"), ("crash", "TypeError")),
    Program(
        "catches the refusal and goes on",
        run("try: api.generate(object())\nexcept Exception: api.submit('x')"),
        "end",
        submitted("x"),
    ),
]

PROCESSES = [
    Program("endless loop", run("while True: pass"), "silence"),
    Program("SIGSTOP self", run("os.kill(os.getpid(), 19)"), "silence"),
    Program("SIGKILL self", run("os.kill(os.getpid(), 9)"), ("crash", ENDED % "was killed by signal 9")),
    Program(
        "segmentation fault",
        run("import ctypes\nctypes.string_at(0)"),
        ("crash", ENDED % "was killed by signal 11"),
    ),
    Program("abort", run("os.abort()"), ("crash", ENDED % "was killed by signal 6")),
    Program("os._exit", run("os._exit(0)"), ("crash", ENDED % "exited with code 0")),
    Program("sys.exit(4)", run("sys.exit(4)"), ("crash", "^SystemExit: 4$")),
    Program("deep recursion", run("run(task, api)"), ("crash", "RecursionError: maximum recursion")),
    Program("never loads", "while True: pass", "silence"),
    Program(
        "fork bomb, endless",
        run("while True:\n    try: os.fork()\n    except BaseException: pass"),
        "silence",
    ),
    Program(
        "fork bomb, bounded",
        run(
            "try:\n    while True:\n        if os.fork() == 0: time.sleep(600)\n"
            "except OSError: api.submit('full')"
        ),
        "end",
        submitted("full"),
    ),
    Program(
        "threads that never end",
        run("import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()\napi.submit('x')"),
        "end",
        submitted("x"),
    ),
    Program(
        "a child in a session of its own",
        run("if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\napi.submit('x')"),
        "end",
        submitted("x"),
    ),
    Program("memory hog", run("bytearray(10**9)"), ("crash", "MemoryError$")),
    Program(
        "atexit hang",
        run("import atexit\natexit.register(time.sleep, 600)\napi.submit('x')"),
        "end",
        submitted("x"),
    ),
    Program(
        "error whose text never ends",
        run("raise E", "class E(Exception):\n    def __str__(self):\n        while True: pass"),
        "silence",
    ),
]

OUTSIDE = [
    Program(
        "process 1",
        attempts(
            "import os; [os.kill(1, number) for number in range(1, 65)] and 1 / 0",
            "open('/proc/1/mem', 'rb')",
            "import os; os.listdir('/proc/1/fd')",
            "import resource as r; r.prlimit(1, r.RLIMIT_CPU, (0, 0))",
            "import os; os.kill(-1, 9)",
        ),
        "end",
        submitted("ZeroDivisionError EACCES EACCES EPERM ESRCH"),
    ),
    Program(
        "lake and assets",
        attempts("import os; assert os.listdir('/lake') + os.listdir('/assets')", "open('/lake/x', 'w')"),
        "end",
        submitted("AssertionError EROFS"),
    ),
    Program(
        "sockets",
        attempts(
            "import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
            "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "import socket; socket.create_connection(('127.0.0.1', 9), 2)",
            "import socket; socket.getaddrinfo('rinr.invalid', 80)",
        ),
        "end",
        submitted("EPERM EPERM ECONNREFUSED gaierror"),
    ),
]

PROGRAMS = [*STREAMS, *CHANNEL, *PROCESSES, *OUTSIDE]
