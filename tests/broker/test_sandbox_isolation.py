"""What a sandbox cannot reach, and what hostile code cannot break. Loopback and local sockets only."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.sandbox.base import Role, Sandbox, SandboxFactory
from tests.fixtures.sandbox_probe import converse, execute, execution, open_or_skip


@pytest.fixture(params=["bubblewrap", "docker"])
async def factory(request: pytest.FixtureRequest) -> AsyncIterator[SandboxFactory]:
    factory = open_or_skip(request.param)
    yield factory
    await factory.close()


@pytest.fixture
async def sandbox(factory: SandboxFactory, tmp_path: Path) -> AsyncIterator[Sandbox]:
    (tmp_path / "table.tsv").write_text("a\tb\n")
    async with execution(factory, lake=tmp_path) as sandbox:
        yield sandbox


async def attempt(sandbox: Sandbox, code: str, seconds: float = 10.0) -> str:
    """What a piece of code printed, or the type of the exception that ended it."""
    wrapped = "".join(f"    {line}\n" for line in code.splitlines())
    wrapped = f"try:\n{wrapped}except BaseException as error:\n    print(type(error).__name__)"
    return (await execute(sandbox, wrapped, seconds))["stdout"].strip()


@pytest.mark.spec("HOST-02")
async def test_no_network_not_even_the_hosts_loopback(factory: SandboxFactory, sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\nprint('reached')"
        assert await attempt(sandbox, code) in ("ConnectionRefusedError", "OSError")
        program = (
            f"import socket\ndef run(task, api):\n    socket.create_connection(('127.0.0.1', {port}), 2)"
        )
        (frame,) = await converse(factory, program)
        assert frame["traceback"].splitlines()[-1].startswith(("OSError", "ConnectionRefusedError"))
    names = "import os\nprint(sorted(open('/proc/net/dev').read().split(':')[0].split()[-1:]))"
    assert await attempt(sandbox, names) == "['lo']"


async def test_sockets_that_a_network_namespace_does_not_cover_are_refused(sandbox: Sandbox) -> None:
    for family in ("AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG"):
        code = f"import socket\nsocket.socket(socket.{family}, socket.SOCK_RAW)\nprint('made')"
        assert await attempt(sandbox, code) == "PermissionError", family


@pytest.mark.spec("HOST-02")
async def test_the_lake_is_read_only_and_no_link_leads_out_of_it(
    factory: SandboxFactory, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "references.json").write_text("private")
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "table.tsv").write_text("a\tb\n")
    (lake / "out").symlink_to(secret / "references.json")
    async with execution(factory, lake=lake) as sandbox:
        assert await attempt(sandbox, "print(open('/lake/table.tsv').read())") == "a\tb"
        for harm in (
            "open('/lake/table.tsv', 'a')",
            "open('/lake/new', 'w')",
            "import os; os.rename('/lake/table.tsv', '/lake/x')",
            "import os; os.chmod('/lake/table.tsv', 0o777)",
            "import os; os.remove('/lake/table.tsv')",
            "open('/usr/bin/python', 'w')",
            "open('/lake/out').read()",
        ):
            assert await attempt(sandbox, harm) in ("OSError", "PermissionError", "FileNotFoundError"), harm
    assert (lake / "table.tsv").read_text() == "a\tb\n"


@pytest.mark.spec("HOST-02")
async def test_the_controller_sees_no_lake_no_assets_and_cannot_be_given_any(
    factory: SandboxFactory, tmp_path: Path
) -> None:
    program = (
        "import os\ndef run(task, api):\n    api.submit(repr(os.listdir('/lake') + os.listdir('/assets')))"
    )
    frames = await converse(factory, program)
    assert frames[0] == {"op": "submit", "text": "[]"}
    with pytest.raises(ValueError, match="HOST-02"):
        await factory.start(Role.CONTROLLER, lake=tmp_path)


@pytest.mark.spec("HOST-02")
async def test_assets_are_shown_to_execution_only_and_to_one_sandbox(
    factory: SandboxFactory, tmp_path: Path
) -> None:
    (tmp_path / "gel.txt").write_text("lane 1")
    with_assets = await factory.start(Role.EXECUTION, assets=tmp_path)
    without = await factory.start(Role.EXECUTION)
    try:
        assert await attempt(with_assets, "print(open('/assets/gel.txt').read())") == "lane 1"
        assert await attempt(without, "import os; print(os.listdir('/assets'))") == "[]"
    finally:
        await with_assets.close()
        await without.close()


async def test_nothing_of_the_host_is_visible(sandbox: Sandbox) -> None:
    code = "import os\nfor f in ('/etc/shadow', '/root', '/var', '/mnt', '/home'):\n"
    code += "    if os.path.exists(f) and os.path.getsize(f): print(f)\n"
    code += "print(sorted(os.environ))\nprint(os.uname().nodename)"
    environment, name = (await attempt(sandbox, code)).splitlines()
    assert name == "sandbox"
    known = ["HOME", "HOSTNAME", "LANG", "LD_LIBRARY_PATH", "MPLCONFIGDIR", "OMP_NUM_THREADS"]
    known += ["OPENBLAS_NUM_THREADS", "PATH", "PWD", "PYTHONHASHSEED", "TZ"]
    assert set(eval(environment)) <= set(known)


async def test_process_1_cannot_be_read(sandbox: Sandbox) -> None:
    for path in ("environ", "mem", "maps", "fd/0", "root/etc/passwd", "cwd/x", "auxv", "syscall", "stack"):
        seen = await attempt(sandbox, f"open('/proc/1/{path}', 'rb').read(10)\nprint('read')")
        assert seen in ("PermissionError", "OSError", "FileNotFoundError"), path


async def test_writing_to_every_descriptor_of_process_1_is_refused(sandbox: Sandbox) -> None:
    assert await attempt(sandbox, "import os\nprint(os.listdir('/proc/1/fd'))") == "PermissionError"
    forge = (
        "n = 0\nfor fd in range(64):\n    try:\n        open(f'/proc/1/fd/{fd}', 'wb').write(b'x'); n += 1\n"
    )
    assert await attempt(sandbox, forge + "    except OSError: pass\nprint(n)") == "0"


CALLS = {
    "unshare": "c.unshare(0x10000000)",
    "mount": "c.mount(b'a', b'/tmp', b'tmpfs', 0, None)",
    "ptrace": "c.ptrace(0, 0, 0, 0)",
    "setns": "c.setns(0, 0)",
    "bpf": "c.syscall(321, 0, 0, 0)",
    "io_uring_setup": "c.syscall(425, 1, 0)",
    "keyctl": "c.syscall(250, 0, 0)",
    "clone into a user namespace": "c.syscall(56, 0x10000011, 0, 0, 0, 0)",
    "setuid": "c.setuid(0)",
    "chroot": "c.chroot(b'/tmp')",
}


async def test_dangerous_calls_are_refused(sandbox: Sandbox) -> None:
    for call, text in CALLS.items():
        code = f"import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nprint({text}, ctypes.get_errno())"
        seen = await attempt(sandbox, code)
        assert seen in ("-1 1", "-1 22"), f"{call}: EPERM, or EINVAL for an id that does not exist"


async def test_the_kernels_knobs_are_not_writable(sandbox: Sandbox) -> None:
    for knob in ("sysrq-trigger", "sys/kernel/core_pattern", "sys/vm/drop_caches"):
        answer = await attempt(sandbox, f"open('/proc/{knob}', 'w').write('1')\nprint('written')")
        assert answer in ("PermissionError", "OSError", "FileNotFoundError"), knob


async def test_a_memory_hog_gets_an_error_and_the_sandbox_goes_on(sandbox: Sandbox) -> None:
    assert await attempt(sandbox, "x = bytearray(10 ** 9)") == "MemoryError"
    assert await attempt(sandbox, "print(1)") == "1"


@pytest.mark.spec("HOST-07")
async def test_running_out_of_memory_is_proved_by_the_kernel(factory: SandboxFactory) -> None:
    """Many processes, each within its own limit: only the group's limit stops them."""
    if "oom" not in factory.proves:
        pytest.skip("no memory group can be made here")
    hog = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = bytearray(120 * 2**20)\n"
    hog += "        time.sleep(1)\n        os._exit(0)\nx = bytearray(120 * 2**20)\ntime.sleep(1)"
    async with execution(factory) as quiet, execution(factory) as sandbox:
        assert not sandbox.oom_killed()
        await execute(sandbox, hog, 6)
        assert sandbox.oom_killed()
        assert not quiet.oom_killed()
    assert sandbox.oom_killed(), "still known after the end"


async def test_full_disks_and_too_many_files_are_errors(sandbox: Sandbox) -> None:
    fill = "for i in range(9): open(f'{folder}/{i}', 'wb').write(bytes(2 ** 21))\nprint('wrote it all')"
    for folder in ("/work", "/tmp", "/dev/shm"):
        assert await attempt(sandbox, f"folder = '{folder}'\n{fill}") == "OSError", folder
    assert await attempt(sandbox, "open('/work/0', 'r+b').truncate(200 * 2 ** 20)") == "OSError"
    assert await attempt(sandbox, "kept = [open('/dev/null') for _ in range(999)]") == "OSError"
    assert await attempt(sandbox, "kept.clear() if 'kept' in dir() else 0; print(1)") == "1"


@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os\nfor _ in range(500):\n    if os.fork() == 0: __import__('time').sleep(60)",
        "import threading as t, time\nfor _ in range(500): t.Thread(target=time.sleep, args=(60,)).start()",
    ],
    ids=["endless", "bounded", "threads"],
)
async def test_a_fork_bomb_is_contained(sandbox: Sandbox, bomb: str) -> None:
    observation = await execute(sandbox, bomb, 1.0)
    assert observation["error"]
    for _ in range(2):  # a bounded bomb leaves its worker alive and its children asleep
        last = await execute(sandbox, "import os\nos._exit(1)")
    assert last["worker_lost"]
    assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"


FORGE = """import os
for fd in os.listdir('/proc/self/fd'):
    try: os.write(int(fd), {payload})
    except OSError: pass
"""


@pytest.mark.parametrize(
    "payload",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x64" + b"[" * 100, b"\x80\x04pickle"],
    ids=["giant", "no object", "deep", "pickle"],
)
async def test_forged_bytes_cost_the_worker_and_nothing_else(sandbox: Sandbox, payload: bytes) -> None:
    observation = await execute(sandbox, FORGE.format(payload=payload))
    assert observation["worker_lost"]
    assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"


async def test_a_forged_late_reply_does_not_answer_the_next_call(sandbox: Sandbox) -> None:
    frame = b'\x00\x00\x00\x13{"id":1,"error":"x"}'
    await execute(sandbox, FORGE.format(payload=frame))
    assert (await execute(sandbox, "print('own answer')"))["stdout"].endswith("own answer\n")


async def test_signals_and_exit_handlers_are_no_trap(sandbox: Sandbox) -> None:
    trap = "import atexit, signal, time\natexit.register(time.sleep, 60)\n"
    trap += (
        "signal.signal(signal.SIGALRM, lambda *_: 1 / 0)\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)"
    )
    await execute(sandbox, trap)
    for _ in range(3):
        await execute(sandbox, "print(1)", 1.0)
    await execute(sandbox, "import os; os._exit(0)")
    assert (await execute(sandbox, "print(1)"))["stdout"] == "1\n"
