"""Proofs that a sandbox on this machine isolates, made from inside by trying; for `rinr doctor --sandbox`.

Each check states what it shows and what was seen. A check that cannot be made fails: nothing is assumed. The
limits are small ones, so that reaching them costs the machine little. Nothing leaves the machine: the network
is tried against a loopback port of this process.
"""

import errno
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.errors import SandboxLost
from broker.sandbox.base import MEBIBYTE, Limits, Role, Sandbox, SandboxFactory
from broker.sandbox.labels import temporary_prefix
from broker.sandbox.seccomp import denied_calls

PROOF_LIMITS: Final[Mapping[Role, Limits]] = {
    Role.CONTROLLER: Limits(
        memory_bytes=128 * MEBIBYTE, processes=8, file_bytes=4 * MEBIBYTE, wall_seconds=120
    ),
    Role.EXECUTION: Limits(
        memory_bytes=256 * MEBIBYTE, processes=16, file_bytes=8 * MEBIBYTE, cpus=0.5, wall_seconds=120
    ),
}
_SECONDS: Final = 30.0
_ALARMS: Final = ("POSSIBLE", "interfaces", "Traceback")
"""Words that no isolated place prints."""


@dataclass(frozen=True)
class Check:
    """One proof."""

    name: str
    passed: bool | None
    """None where this machine has no means to enforce it, which `detail` then says."""
    detail: str
    """What was seen."""


_TRY: Final = """
def attempt(action, *arguments):
    try:
        action(*arguments)
    except (OSError, MemoryError) as error:
        return type(error).__name__
    return 'POSSIBLE'
"""

_NETWORK: Final = """
import socket
seen = attempt(socket.create_connection, ('127.0.0.1', {port}), 3)
names = sorted(line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line)
print(seen if names == ['lo'] else f'interfaces {{names}}')
"""

_SOCKETS: Final = """
import socket
for name in ('AF_VSOCK', 'AF_NETLINK', 'AF_PACKET', 'AF_ALG'):
    print(name, attempt(socket.socket, getattr(socket, name), socket.SOCK_RAW))
"""

_WRITES: Final = """
import os
print('write', attempt(open, '{folder}/new', 'w'), 'append', attempt(open, '{path}', 'a'))
print('rename', attempt(os.rename, '{path}', '{path}2'), 'chmod', attempt(os.chmod, '{path}', 0o777))
"""

_PROCESS_1: Final = """
import os
for name in ('environ', 'mem', 'maps', 'fd/0', 'root/etc/passwd'):
    print(name, attempt(lambda: open('/proc/1/' + name, 'rb').read(1)))
print('fd', attempt(os.listdir, '/proc/1/fd'))
"""

_HOST_FILES: Final = """
import os
print('outside', attempt(open, {outside!r}))
for path in ('/var/run/docker.sock', '/run/docker.sock', '/etc/shadow', '/root'):
    print(path, 'POSSIBLE' if os.path.exists(path) and os.path.getsize(path) else 'absent')
"""

_KNOBS: Final = """
for name in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches'):
    print(name, attempt(open, name, 'w'))
"""

_PROCESSES: Final = """
import os, signal, time
children = []
try:
    while len(children) < 100:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
    print('POSSIBLE')
except OSError as error:
    print(f'{type(error).__name__} after {len(children)} more processes')
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""

_FILES: Final = """
kept = []
def many():
    while len(kept) < 10_000:
        kept.append(open('/dev/null'))
seen = attempt(many)
print(seen, 'after', len(kept), 'files')
kept.clear()
"""

_DISK: Final = """
def fill(folder):
    for number in range({count}):
        with open(f'{{folder}}/{{number}}', 'wb') as file:
            file.write(bytes(1 << 20))
import os
for folder in ('/work', '/tmp', '/dev/shm'):
    print(folder, attempt(fill, folder))
    for name in os.listdir(folder):
        os.remove(f'{{folder}}/{{name}}')
"""

_HOG: Final = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        x = bytearray(90 << 20)
        time.sleep(2)
        os._exit(0)
time.sleep(2)
"""

_BURN: Final = """
import os, time
end = time.monotonic() + 2
children = []
for _ in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        while time.monotonic() < end: pass
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
times = os.times()
print((times.children_user + times.children_system) / 2)
"""

_CALLS: Final = """
import ctypes
library = ctypes.CDLL(None, use_errno=True)
for name, number in {calls!r}.items():
    ctypes.set_errno(0)
    result = library.syscall(number, 0, 0, 0, 0, 0, 0)
    print(name, ctypes.get_errno() if result == -1 else 0)
"""


@dataclass
class _Examination:
    """The checks made so far on one execution sandbox."""

    sandbox: Sandbox
    checks: list[Check] = field(default_factory=list[Check])

    async def execute(self, code: str, seconds: float = _SECONDS) -> dict[str, Any]:
        await self.sandbox.send({"op": "execute", "code": _TRY + code, "seconds": seconds})
        return await self.sandbox.receive(seconds + _SECONDS)

    async def printed(self, code: str) -> str:
        frame = await self.execute(code)
        return str(frame["stdout"] + frame["error"]).strip()

    async def make(self, name: str, proof: Callable[[], Awaitable[Check]]) -> None:
        try:
            self.checks.append(await proof())
        except (SandboxLost, TimeoutError) as error:
            self.checks.append(Check(name, False, str(error)))

    async def refused(self, name: str, code: str) -> None:
        """Everything that the code tries must fail: it prints an error for each, or POSSIBLE."""

        async def proof() -> Check:
            seen = await self.printed(code)
            return Check(name, bool(seen) and not any(word in seen for word in _ALARMS), _one_line(seen))

        await self.make(name, proof)

    async def shows(self, name: str, code: str, wanted: str) -> None:
        async def proof() -> Check:
            seen = await self.printed(code)
            return Check(name, seen == wanted, _one_line(seen))

        await self.make(name, proof)


def _one_line(text: str) -> str:
    return ", ".join(text.splitlines())[-300:]


async def check_sandbox(factory: SandboxFactory) -> list[Check]:
    """Start a sandbox of each role and try to break out. Never raises for a failed proof.

    The factory's limits should be `PROOF_LIMITS`.
    """
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("check")) as folder:
        lake = Path(folder) / "lake"
        lake.mkdir()
        token = secrets.token_hex(8)
        (lake / "token").write_text(token)
        (Path(folder) / "outside").write_text(token)
        try:
            sandbox = await factory.start(Role.EXECUTION, lake=lake)
        except SandboxLost as error:
            return [Check("starts", False, str(error))]
        examination = _Examination(sandbox, [Check("starts", True, f"a {factory.kind} sandbox")])
        try:
            await _examine(examination, Path(folder) / "outside", token)
            await _exhaust(examination, factory)
            # Last: where a call is allowed, who knows what it did to its process.
            await examination.make("escape list", lambda: _escapes(examination))
            await examination.make("controller", lambda: _controller(factory))
        finally:
            await sandbox.close()
    return examination.checks


async def _examine(examination: _Examination, outside: Path, token: str) -> None:
    """What can be reached from inside."""
    await examination.shows("libraries", "import numpy, pandas\nprint('numpy, pandas')", "numpy, pandas")
    with socket.create_server(("127.0.0.1", 0)) as server:
        await examination.refused("network", _NETWORK.format(port=server.getsockname()[1]))
    await examination.refused("vsock and other sockets", _SOCKETS)
    await examination.shows("lake is readable", "print(open('/lake/token').read())", token)
    lake = _WRITES.format(folder="/lake", path="/lake/token")
    await examination.refused("lake is read-only", lake)
    root = _WRITES.format(folder="/usr", path="/etc/passwd")
    await examination.refused("root is read-only", root)
    await examination.refused("host's files", _HOST_FILES.format(outside=str(outside)))
    await examination.refused("process 1 is closed", _PROCESS_1)
    await examination.refused("kernel's knobs", _KNOBS)


async def _escapes(examination: _Examination) -> Check:
    """Each call of the deny list, with arguments that do nothing where it is allowed."""
    calls = denied_calls()
    seen = await examination.printed(_CALLS.format(calls=calls))
    absent = (str(errno.EPERM), str(errno.ENOSYS))
    refused = {name for name, number in _pairs(seen) if number in absent}
    allowed = sorted(set(calls) - refused)
    detail = (
        f"NOT REFUSED: {', '.join(allowed)}" if allowed else "all refused, mount, ptrace, bpf, ... io_uring"
    )
    return Check("escape list", not allowed, f"{len(refused)} of {len(calls)} calls; {detail}"[:300])


def _pairs(text: str) -> list[tuple[str, str]]:
    found = (line.partition(" ") for line in text.splitlines())
    return [(name, rest) for name, _, rest in found]


async def _exhaust(examination: _Examination, factory: SandboxFactory) -> None:
    """What can be used up from inside."""
    await examination.refused("memory of a process", "print(attempt(bytearray, 1 << 42))")
    await examination.refused("processes", _PROCESSES)
    await examination.refused("open files", _FILES)
    count = (PROOF_LIMITS[Role.EXECUTION].file_bytes >> 20) + 16
    await examination.refused("disk", _DISK.format(count=count))
    await examination.make("time of a call", lambda: _deadline(examination))
    await examination.make("processors", lambda: _processors(examination, factory))
    await examination.make("memory of a sandbox", lambda: _memory(examination, factory))
    kill = "import os\ntry:\n    os.kill(1, 9)\nexcept OSError:\n    pass\nprint('alive')"
    await examination.shows("survives all this", kill, "alive")


async def _deadline(examination: _Examination) -> Check:
    frame = await examination.execute("while True: pass", seconds=0.5)
    seen = "ended at its limit" if frame["timed_out"] else f"NOT ENDED: {frame['error'][-100:]}"
    return Check("time of a call", frame["timed_out"] is True, seen)


async def _processors(examination: _Examination, factory: SandboxFactory) -> Check:
    """Several processes that do nothing but compute get no more time together than the limit."""
    name, limit = "processors", PROOF_LIMITS[Role.EXECUTION].cpus
    if "cpus" not in factory.proves:
        return Check(name, None, "not limited: no cpu controller of the kernel's that this user may use")
    used = float(await examination.printed(_BURN))
    # The kernel shares time out in slices of some milliseconds.
    return Check(name, used <= 1.4 * limit, f"3 busy processes got {used:.2f} of one, the limit is {limit:g}")


async def _memory(examination: _Examination, factory: SandboxFactory) -> Check:
    """Several processes, each within its own limit: only a limit over all of them stops these."""
    name = "memory of a sandbox"
    if "oom" not in factory.proves:
        return Check(name, None, "limited for each process only; out of memory counts as a lost sandbox here")
    await examination.execute(_HOG, 10)
    proved = examination.sandbox.oom_killed()
    return Check(name, proved, "the kernel's counter shows it" if proved else "NOT LIMITED")


async def _controller(factory: SandboxFactory) -> Check:
    """What a program finds where the lake would be."""
    program = (
        "import os\ndef run(task, api):\n    api.submit(repr(os.listdir('/lake') + os.listdir('/assets')))"
    )
    sandbox = await factory.start(Role.CONTROLLER)
    try:
        await sandbox.send({"op": "start", "program": program, "task": {}})
        frame = await sandbox.receive(_SECONDS)
        seen = str(frame.get("text", frame))
        return Check("controller", seen == "[]", f"sees {seen} of lake and assets")
    finally:
        await sandbox.close()
