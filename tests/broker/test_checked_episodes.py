"""Whole episodes on tasks that scripts check: real sandboxes with a shell, and a scripted model."""

import os
from pathlib import Path
from typing import Any

import pytest

from broker.broker import Broker
from broker.budgets import Budgets
from broker.errors import OURS
from broker.guidance import host_guidance
from broker.limiter import Limiter
from broker.record import StopReason
from broker.sandbox.base import SandboxFactory
from rl.rows import build_rows
from tests.fixtures.episodes import ScriptedModel, attempt, template
from tests.fixtures.sandboxes import real_shell_runtime
from tests.verifier.test_importer_harbor import SAMPLES, TOML, released, sampled, task_folder
from verifier.grade import Grader
from verifier.release import Release, ReleaseError
from verifier.script import RewardError


def broker_on(release: Release, sandboxes: SandboxFactory, **changes: Any) -> Broker:
    return Broker(
        model=ScriptedModel("working on it"),
        template=template(),
        sandboxes=sandboxes,
        grader=Grader(release),
        release=release,
        budgets=Budgets(),
        guidance=host_guidance(release.inventory()),
        limiter=Limiter(4),
        **{"back_off": 0.01, "retries": 0, **changes},
    )


def program(*codes: str, submit: str = "done") -> str:
    """Asks once, then for each code: execute it, submit, and go on if there is a next step."""
    lines = "\n".join(f"    api.execute({code!r})\n    api.submit({submit!r})" for code in codes)
    ask = 'api.generate([{"role": "user", "content": task["prompt"], "source": "task"}])'
    return f"def run(task, api):\n    {ask}\n{lines}\n"


CHECK = """#!/bin/bash
[ "$(cat /app/answer.txt)" = "$(cat /tests/expected)" ] && reward=1 || reward=0
python3 -c "import json; json.dump({'right': $reward, 'tried': 1}, open('/logs/verifier/reward.json', 'w'))"
"""


def metal(root: Path, script: str = CHECK, toml: str = TOML) -> Release:
    docker = "FROM x\nWORKDIR /app\nCOPY hint.txt start.sh ./\n"
    files = {
        "environment/Dockerfile": docker,
        "environment/hint.txt": "F",
        "environment/start.sh": "#!/bin/bash\necho -n $SUFFIX",
        "tests/test.sh": script,
        "tests/expected": "Fe",
    }
    return released(task_folder(root / "metal", f"{toml}env = {{ SUFFIX = 'e' }}\n", **files), root)


WRITE = """
import subprocess
end = subprocess.run(['./start.sh'], capture_output=True, text=True).stdout
open('/app/answer.txt', 'w').write(open('hint.txt').read() + end)
"""


@pytest.mark.spec("RL-04", "HOST-01")
async def test_files_that_were_left_are_checked_by_the_tasks_script(shelled: SandboxFactory, tmp_path: Path):
    release = metal(tmp_path)
    broker = broker_on(release, shelled)
    (task,) = release.tasks
    good = await broker.run(attempt(program(WRITE), task))
    assert (good.verdict.score, good.verdict.correct, good.verdict.format_valid) == (1.0, True, True)
    assert good.outside[0].satisfaction == {"right": 1.0, "tried": 1.0}
    bad = await broker.run(attempt(program("open('answer.txt', 'w').write('Cu')"), task))
    assert (bad.verdict.score, bad.verdict.correct, bad.verdict.reward) == (0.5, False, 0.5)
    nothing = await broker.run(attempt(program(""), task))
    assert nothing.verdict.reward == 0.5
    assert good.record.stop_reason == StopReason.FIRST_ANSWER
    broker.grader.close()


@pytest.mark.spec("EVID-02")
async def test_tests_are_never_where_the_programs_code_runs(shelled: SandboxFactory, tmp_path: Path):
    """The code looks for them before and after the submission, from a process that outlives its call."""
    look = """
import os, time
if os.fork() == 0:
    end = time.time() + 4
    while time.time() < end:
        if any(map(os.path.exists, ('/tests/expected', '/tmp/tests/expected', '/assets/tests/expected'))):
            open('/app/answer.txt', 'w').write('Fe')
        time.sleep(0.01)
    os._exit(0)
"""
    slow = CHECK.replace("#!/bin/bash\n", "#!/bin/bash\nsleep 2\n")
    release = metal(tmp_path, slow)
    broker = broker_on(release, shelled)
    graded = await broker.run(attempt(program(look), release.tasks[0]))
    assert graded.verdict.criteria == {"script": 0.5}
    assert "expected" not in graded.record.model_dump_json().replace("tests/expected", "")
    broker.grader.close()


async def test_a_script_without_a_reward_loses_the_episode_and_masks_its_group(
    shelled: SandboxFactory, tmp_path: Path
):
    release = metal(tmp_path, "#!/bin/bash\nexit 1\n")
    broker = broker_on(release, shelled)
    with pytest.raises(RewardError) as caught:
        await broker.run(attempt(program(WRITE), release.tasks[0]))
    assert isinstance(caught.value, OURS)
    (lost,) = await broker.run_all([attempt(program(WRITE), release.tasks[0])], masked_ok=True)
    assert "RewardError" in getattr(lost, "error", "")
    broker.grader.close()


async def test_a_workspace_past_its_limits_is_the_programs_own_doing_and_scores_0(
    shelled: SandboxFactory, tmp_path: Path
):
    release = metal(tmp_path)
    broker = broker_on(release, shelled)
    code = program("open('/app/big', 'wb').truncate(65 << 20)")
    graded = await broker.run(attempt(code, release.tasks[0]))
    assert (graded.verdict.format_valid, graded.verdict.reward) == (False, 0.0)
    assert "more than" in graded.verdict.reason
    broker.grader.close()


async def test_a_task_that_requires_what_is_not_here_runs_no_episode(shelled: SandboxFactory, tmp_path: Path):
    toml = TOML.replace('network_mode = "no-network"', 'network_mode = "public"')
    release = metal(tmp_path, toml=toml)
    broker = broker_on(release, shelled)
    with pytest.raises(ReleaseError, match="requires network"):
        await broker.run(attempt(program(WRITE), release.tasks[0]))


def solutions() -> list[str]:
    """The sample's own solutions, as code that the program runs."""
    names = ("scaffold", "implement", "document")
    scripts = [(SAMPLES / f"multi-step/steps/{name}/solution/solve.sh").read_text() for name in names]
    return [f"import subprocess\nsubprocess.run(['bash', '-c', {text!r}], check=True)" for text in scripts]


@sampled
async def test_the_multi_step_sample_is_solved_by_its_own_solutions_step_by_step(
    shelled: SandboxFactory, tmp_path: Path
):
    release = released(SAMPLES / "multi-step", tmp_path, assume=("network", "image"))
    broker = broker_on(release, shelled)
    (task,) = release.tasks
    graded = await broker.run(attempt(program(*solutions()), task))
    assert graded.record.error is None
    assert (graded.verdict.score, graded.verdict.correct) == (1.0, True)
    assert [answer.criterion for answer in graded.outside] == ["scaffold", "implement", "document"]
    assert task.surroundings is not None
    replies = [submission.reply for submission in graded.record.submissions]
    assert replies == [*(step.prompt for step in task.surroundings.steps[1:]), None]
    assert [call.error for call in graded.record.tool_calls] == ["", "", ""]
    broker.grader.close()


@sampled
async def test_a_failed_step_ends_the_sample_and_steps_left_out_are_no_submission(
    shelled: SandboxFactory, tmp_path: Path
):
    release = released(SAMPLES / "multi-step", tmp_path, assume=("network", "image"))
    broker = broker_on(release, shelled)
    first, second, _ = solutions()
    failed = await broker.run(attempt(program("pass", second), release.tasks[0]))
    assert (failed.verdict.score, len(failed.record.submissions)) == (0.0, 1)
    halfway = await broker.run(attempt(program(first), release.tasks[0]))
    assert (halfway.verdict.reward, halfway.verdict.format_valid) == (0.0, False)
    assert halfway.verdict.reason == "not all steps were submitted"
    partly = await broker.run(attempt(program(first, second, "pass"), release.tasks[0]))
    assert partly.verdict.score == pytest.approx(2 / 3)
    broker.grader.close()


def test_the_shell_is_only_in_the_environment_that_asks_for_it():
    from tests.fixtures.sandboxes import real_runtime

    plain, shelled = real_runtime(), real_shell_runtime()
    assert plain.digest != shelled.digest
    assert not (plain.root / "usr/bin/bash").exists()
    assert (shelled.root / "usr/bin/bash").exists()
    assert os.path.samefile(plain.root / "etc/passwd", shelled.root / "etc/passwd")  # noqa: PTH121


async def test_rewards_between_0_and_1_reach_the_training_rows(shelled: SandboxFactory, tmp_path: Path):
    release = metal(tmp_path)
    broker = broker_on(release, shelled)
    (task,) = release.tasks
    plan = {"mode": "rl", "temperature": 1.0}
    results = [
        await broker.run(attempt(program(code), task, **plan, repetition=n))
        for n, code in enumerate((WRITE, "pass"))
    ]
    rewards = [
        row.rewards[-1] for row in build_rows(results, [task.id], 2, reward="rubric").rows if row.is_last
    ]
    assert rewards == [1.0, 0.5]
    rewards = [row.rewards[-1] for row in build_rows(results, [task.id], 2).rows if row.is_last]
    assert rewards == [1.0, 0.0]
    broker.grader.close()
