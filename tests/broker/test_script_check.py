"""Check scripts for real: private tests on a copy of the workspace, in a fresh sandbox with a shell."""

import asyncio
from pathlib import Path

import pytest

from broker.errors import OURS
from broker.sandbox.base import Role, SandboxFactory
from broker.script_check import run_script
from broker.workspace import Workspace, collect, run_ours
from verifier.script import RewardError, ScriptStep


def private(folder: Path, script: str, **others: str) -> Path:
    for name, text in {"tests/test.sh": f"#!/bin/bash\n{script}", **others}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


async def check(
    sandboxes: SandboxFactory, folder: Path, script: str, *, seconds: float = 20, **others: str
) -> dict[str, float]:
    step = ScriptStep(("tests",), seconds, {"EXPECTED": "Fe"})
    workspace = Workspace()
    found = await run_script(sandboxes, workspace, step, private=private(folder, script, **others), lake=None)
    return found.rewards


async def test_a_script_sees_the_workspace_as_it_was_left_and_its_own_tests(
    shelled: SandboxFactory, tmp_path: Path
):
    left = await shelled.start(Role.EXECUTION)
    try:
        code = "open('/app/answer.txt', 'w').write('Fe')\nimport os\nos.makedirs('/app/bin')\n"
        code += "open('/app/bin/say', 'w').write('#!/bin/bash\\ncat /app/answer.txt')\n"
        code += "os.chmod('/app/bin/say', 0o755)"
        await run_ours(left, code, 20)
        workspace = await collect(left)
    finally:
        await left.close()
    script = """
source /tests/helpers.sh
[ "$(/app/bin/say)" = "$EXPECTED" ] || { reward 0; exit; }
[ "$(cat answer.txt)" = "$(cat /tests/expected)" ] && reward 1 || reward 0
"""
    helpers = 'reward() { echo "$1" > /logs/verifier/reward.txt; }'
    folder = private(tmp_path, script, **{"tests/helpers.sh": helpers, "tests/expected": "Fe"})
    step = ScriptStep(("tests",), 20, {"EXPECTED": "Fe"})
    result = await run_script(shelled, workspace, step, private=folder, lake=None)
    workspace.close()
    assert (result.rewards, result.status) == ({"reward": 1.0}, 0)


async def test_reward_json_counts_before_reward_txt_and_the_exit_status_counts_for_nothing(
    shelled: SandboxFactory, tmp_path: Path
):
    script = """
echo 0 > /logs/verifier/reward.txt
python3 -c 'import json; json.dump({"correct": 1, "fast": 0.5}, open("/logs/verifier/reward.json", "w"))'
exit 3
"""
    assert await check(shelled, tmp_path, script) == {"correct": 1.0, "fast": 0.5}


FAILING = {
    "nothing": ("true", "neither"),
    "empty": (": > /logs/verifier/reward.txt", "empty"),
    "not a number": ("echo maybe > /logs/verifier/reward.txt", "not a number"),
    "NaN": ("echo nan > /logs/verifier/reward.txt", "not finite"),
    "infinite": ("echo '{\"a\": 1e999}' > /logs/verifier/reward.json", "not a finite number"),
    "an empty reward.json beside a good reward.txt": (
        "echo 1 > /logs/verifier/reward.txt; : > /logs/verifier/reward.json",
        "reward.json is empty",
    ),
    "a link": ("ln -s /etc/passwd /logs/verifier/reward.txt", "empty"),
    "a folder": ("mkdir /logs/verifier/reward.json", "empty"),
    "a pipe": ("python3 -c 'import os; os.mkfifo(\"/logs/verifier/reward.txt\")'", "empty"),
    "too large": ("head -c 5000 /dev/zero | tr '\\0' 1 > /logs/verifier/reward.txt", "empty"),
    "time out": ("echo 1 > /logs/verifier/reward.txt; sleep 60", "did not end within"),
    "time out, in the background of another session": ("setsid sleep 60 & wait", "did not end within"),
    "no script": ("", "neither"),
}


@pytest.mark.spec("HOST-07")
@pytest.mark.parametrize("name", FAILING)
async def test_a_script_without_a_usable_reward_is_an_error_of_ours_and_never_a_zero(
    shelled: SandboxFactory, tmp_path: Path, name: str
):
    script, words = FAILING[name]
    seconds = 1.5 if name.startswith("time out") else 20
    with pytest.raises(RewardError, match=words) as caught:
        await check(shelled, tmp_path, script, seconds=seconds)
    assert isinstance(caught.value, OURS)


async def test_a_script_has_no_network_and_only_its_own_limit_of_memory(
    shelled: SandboxFactory, tmp_path: Path
):
    script = """
python3 - <<'END'
import json, socket
try:
    socket.create_connection(("127.0.0.1", 9), 2)
    network = 1
except OSError:
    network = 0
interfaces = sum(":" in line for line in open("/proc/net/dev")) - 1
try:
    bytearray(200 << 20)
    memory = 1
except MemoryError:
    memory = 0
json.dump({"network": network, "interfaces": interfaces, "memory": memory},
          open("/logs/verifier/reward.json", "w"))
END
"""
    step = ScriptStep(("tests",), 20)
    folder = private(tmp_path, script)
    found = await run_script(shelled, Workspace(), step, private=folder, lake=None, memory_bytes=100 << 20)
    assert found.rewards == {"network": 0.0, "interfaces": 0.0, "memory": 0.0}


async def test_what_the_script_left_running_cannot_change_the_reward(shelled: SandboxFactory, tmp_path: Path):
    script = """
echo 0 > /logs/verifier/reward.txt
setsid bash -c 'while true; do echo 1 > /logs/verifier/reward.txt.new; done' > /dev/null 2>&1 &
(sleep 1; echo 1 > /logs/verifier/reward.txt) &
"""
    assert await check(shelled, tmp_path, script) == {"reward": 0.0}


async def test_many_checks_at_once_see_each_their_own_tests(shelled: SandboxFactory, tmp_path: Path):
    rewards = await asyncio.gather(
        *(
            check(shelled, tmp_path / str(n), f"echo 0.{n} > /logs/verifier/reward.txt; sleep 0.2")
            for n in range(4)
        )
    )
    assert rewards == [{"reward": n / 10} for n in range(4)]
