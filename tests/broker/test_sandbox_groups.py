"""The kernel's groups of a sandbox and its users: who shares them, and what they limit."""

import asyncio
import os
from pathlib import Path

import pytest

from broker.sandbox import cgroup
from broker.sandbox.base import Role, SandboxFactory
from broker.sandbox.factory import Kind, open_factory
from tests.fixtures.leftovers import inside, marked_processes, settles
from tests.fixtures.sandbox_probe import (
    CACHE,
    SMALL,
    converse,
    execute,
    execution,
    open_or_skip,
    sandbox_runtime,
)
from tests.fixtures.sandboxes import BACK_ENDS

WHO = "import os\nprint(os.getuid(), os.getgid(), os.getgroups())"


async def marked(kind: Kind, number: int, cpus: float = 1.0) -> tuple[SandboxFactory, str]:
    """A factory whose sandboxes can be told from all others."""
    seconds = number + os.getpid() % 1000 + 0.5
    await open_or_skip(kind).close()
    limits = {
        role: one.model_copy(update={"wall_seconds": seconds, "cpus": cpus}) for role, one in SMALL.items()
    }
    return open_factory(kind, sandbox_runtime(), CACHE, limits), f'"wall_seconds": {seconds}'


@pytest.mark.spec("HOST-02")
@pytest.mark.parametrize("kind", BACK_ENDS)
async def test_the_two_roles_have_users_of_their_own(kind: Kind) -> None:
    factory, mark = await marked(kind, 8000)
    program = (
        "import os\ndef run(task, api):\n    api.submit(f'{os.getuid()} {os.getgid()} {os.getgroups()}')"
    )
    (submitted, _) = await converse(factory, program)
    async with execution(factory) as sandbox:
        other = (await execute(sandbox, WHO))["stdout"].strip()
        assert [submitted["text"].split("[")[0], other.split("[")[0]] == ["65533 65533 ", "65534 65534 "]
        if os.geteuid() == 0:
            controller = await factory.start(Role.CONTROLLER)
            users = {role: {host_user(pid) for pid in inside(mark, role)} for role in Role}
            assert users == {Role.CONTROLLER: {65533}, Role.EXECUTION: {65534}}, "on the host as well"
            await controller.close()
    await factory.close()
    assert await settles(lambda: marked_processes(mark) == [], within=2.0)


def host_user(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.mark.parametrize("kind", BACK_ENDS)
async def test_a_sandbox_gets_no_more_processor_time_than_its_limit(kind: Kind) -> None:
    factory, _ = await marked(kind, 9000, cpus=0.2)
    if "cpus" not in factory.proves:
        await factory.close()
        pytest.skip("no cpu controller that this user may use")
    code = """
import os, time
start, children = time.monotonic(), []
for _ in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        while time.monotonic() < start + 2: pass
        os._exit(0)
for child in children: os.waitpid(child, 0)
times = os.times()
print((times.children_user + times.children_system) / (time.monotonic() - start))
"""
    async with execution(factory) as sandbox:
        share = float((await execute(sandbox, code))["stdout"])
    await factory.close()
    assert share < 0.3


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"cpu.max": ""}, {"cpu.max": "50000 100000"}),
        (
            {"cpu.cfs_quota_us": "", "cpu.cfs_period_us": ""},
            {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
        ),
        ({}, None),
    ],
    ids=["version 2", "version 1", "no controller"],
)
def test_processor_time_is_limited_in_both_versions(
    tmp_path: Path, files: dict[str, str], wanted: dict[str, str] | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cgroup._limit_cpu(tmp_path, 0.5) is (wanted is not None)
    for name, text in (wanted or {}).items():
        assert (tmp_path / name).read_text() == text


async def test_a_group_leaves_nothing_behind() -> None:
    group = cgroup.make_group(64 << 20, 1.0)
    if group is None:
        pytest.skip("this user can make no group")
    folders = [members.parent for members in group.members]
    assert all(folder.is_dir() for folder in folders)
    asleep = await asyncio.create_subprocess_exec("sleep", "60")
    for members in group.members:
        members.write_text(str(asleep.pid))
    asleep.kill()
    await group.remove()
    assert not any(folder.exists() for folder in folders)
    await asleep.wait()
