"""The workspace of an episode: carried from one sandbox to another as it is, whatever the code left there."""

import io
import tarfile

import pytest

from broker import workspace
from broker.sandbox.base import Role, Sandbox, SandboxFactory
from broker.workspace import Workspace, collect, restore, run_ours
from tests.fixtures.sandboxes import sandboxes

__all__ = ["sandboxes"]

LEAVE = """
import os
os.makedirs('/work/data/deep')
open('/work/data/deep/a.bin', 'wb').write(bytes(range(256)) * 4000)
open('/work/run.sh', 'w').write('#!/bin/sh')
os.chmod('/work/run.sh', 0o750)
os.makedirs('/work/empty')
os.symlink('/etc/passwd', '/work/link')
os.symlink('data/deep', '/work/folder')
open(b'/work/\\xff\\xfe', 'w').write('no UTF-8')
open('/work/closed', 'w').write('secret of its own')
os.chmod('/work/closed', 0)
os.makedirs('/work/shut')
open('/work/shut/inner', 'w').write('inner')
os.chmod('/work/shut', 0)
os.mkfifo('/work/pipe')
kept = 41
"""
LOOK = """
import hashlib, os
for place, folders, files in os.walk(b'/work'):
    folders.sort()
    for name in sorted(folders + files):
        path = os.path.join(place, name)
        status = os.lstat(path)
        print(path, oct(status.st_mode & 0o777), os.readlink(path) if os.path.islink(path) else '')
print(hashlib.sha256(open('/work/data/deep/a.bin', 'rb').read()).hexdigest())
"""


async def _moved(sandboxes: SandboxFactory, code: str) -> tuple[Sandbox, Sandbox, Workspace]:
    first = await sandboxes.start(Role.EXECUTION)
    await run_ours(first, code, 20)
    found = await collect(first)
    second = await sandboxes.start(Role.EXECUTION)
    await restore(second, found)
    return first, second, found


async def test_files_modes_and_links_arrive_in_the_other_sandbox_and_special_files_stay(
    sandboxes: SandboxFactory,
):
    first, second, found = await _moved(sandboxes, LEAVE)
    try:
        seen = await run_ours(second, LOOK, 20)
        for line in ("run.sh' 0o750", "closed' 0o0", "shut' 0o0", "data/deep/a.bin", "empty'", "\\xff\\xfe"):
            assert line in seen
        assert "link' 0o777 b'/etc/passwd'" in seen
        assert "folder' 0o777 b'data/deep'" in seen
        assert "pipe" not in seen
        assert seen.split()[-1] in await run_ours(first, LOOK, 20)
    finally:
        found.close()
        await first.close()
        await second.close()


async def test_the_sandbox_runs_on_with_its_variables_after_its_workspace_was_taken(
    sandboxes: SandboxFactory,
):
    first, second, found = await _moved(sandboxes, LEAVE)
    try:
        assert await run_ours(first, "print(kept + 1)", 20) == "42\n"
    finally:
        found.close()
        await first.close()
        await second.close()


async def test_nothing_in_the_sandbox_runs_while_its_workspace_is_taken(sandboxes: SandboxFactory):
    """A writer that never stops: a file that grew while it is read would break the archive."""
    code = """
import os
if os.fork() == 0:
    with open('/work/growing', 'ab', buffering=0) as file:
        while file.tell() < 16 << 20:
            file.write(b'x' * 65536)
    os._exit(0)
"""
    first = await sandboxes.start(Role.EXECUTION)
    try:
        await run_ours(first, code, 20)
        for _ in range(4):
            found = await collect(first)
            assert found.refused == ""
            assert found.archive is not None
            found.archive.seek(0)
            with tarfile.open(fileobj=io.BytesIO(found.archive.read())) as archive:
                assert [entry.name for entry in archive.getmembers()] == ["growing"]
            found.close()
    finally:
        await first.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("open('/work/big', 'wb').truncate(70 << 20)", "more than"),
        ("[open(f'/work/{n}', 'w').close() for n in range(10_001)]", "files and folders"),
        ("import os\nos.makedirs('/work/' + '/'.join(['a'] * 42))", "nested deeper"),
    ],
)
async def test_a_workspace_past_a_limit_is_refused_with_the_reason(
    sandboxes: SandboxFactory, code: str, words: str
):
    first = await sandboxes.start(Role.EXECUTION)
    try:
        await run_ours(first, code, 20)
        found = await collect(first)
        assert found.archive is None
        assert words in found.refused
    finally:
        await first.close()


async def test_an_episode_that_never_ran_code_has_an_empty_workspace(sandboxes: SandboxFactory):
    second = await sandboxes.start(Role.EXECUTION)
    try:
        await restore(second, Workspace())
        assert await run_ours(second, "import os\nprint(os.listdir('/work'))", 20) == "[]\n"
    finally:
        await second.close()


def test_the_limits_of_a_workspace_lie_below_those_of_its_sandbox():
    from broker.sandbox.base import DEFAULT_LIMITS

    assert DEFAULT_LIMITS[Role.EXECUTION].file_bytes >= 2 * workspace.MAX_BYTES
