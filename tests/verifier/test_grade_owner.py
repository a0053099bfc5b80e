"""The grader's process and its owner: forks, a killed owner, what it inherits and what it tells."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from grader_processes import ROOT, a_task, alive, gone, pid_of

from tests.fixtures.references import load_references
from tests.fixtures.releases import tiny_release
from verifier import grader_child, grader_process
from verifier.grade import Grader
from verifier.release import Release
from verifier.task import AnswerFormat


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return tiny_release(tmp_path_factory.mktemp("release"))


OWNER = """
import os, sys, time
from pathlib import Path
from verifier.grade import Grader
from verifier.release import Release
grader = Grader(Release.load(Path(sys.argv[1]))).start()
if sys.argv[2] == "holder" and (holder := os.fork()) == 0:
    time.sleep(60)  # holds a copy of the connection
    os._exit(0)
print(grader.pid, holder if sys.argv[2] == "holder" else 0, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["alone", "holder"])
def test_it_ends_with_its_killed_owner_even_if_a_fork_holds_the_connection(
    release: Release, kind: str
) -> None:
    command = [sys.executable, "-c", OWNER, str(release.root), kind]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, holder = map(int, owner.stdout.readline().split())
        assert alive(pid)
        owner.kill()
        owner.wait()
        try:
            assert gone(pid, 10)
        finally:
            if holder:
                os.kill(holder, signal.SIGKILL)


def _graded_in_a_fork(grader: Grader, task: str, results: "multiprocessing.Queue[tuple[bool, int]]") -> None:
    verdict = grader.grade(task, "<answer>in the fork</answer>")
    results.put((verdict.answer == "in the fork", pid_of(grader)))


def test_a_fork_gets_a_process_of_its_own_and_leaves_its_parents_alone(release: Release) -> None:
    """Started in a process without threads, as a job is forked from one."""
    code = (
        "import multiprocessing, sys; from pathlib import Path; from test_grade_owner import *\n"
        "from test_grade_owner import _graded_in_a_fork\n"
        f"grader = Grader(Release.load(Path({str(release.root)!r}))).start(); task = {a_task(release)!r}\n"
        "context = multiprocessing.get_context('fork'); results = context.Queue(); mine = grader.pid\n"
        "for _ in range(3):\n"
        "    job = context.Process(target=_graded_in_a_fork, args=(grader, task, results)); job.start()\n"
        "    assert grader.grade(task, '<answer>here</answer>').answer == 'here'\n"
        "    right, other = results.get(timeout=30); job.join()\n"
        "    assert right and other != mine and gone(other, 10), (right, other, mine)\n"
        "    assert grader.grade(task, '<answer>here</answer>').answer == 'here' and grader.pid == mine\n"
    )
    search = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.spec("EVID-02")
def test_it_inherits_no_key_and_prints_nothing(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINR_TEST_API_KEY", "sk-secret")
    with Grader(release) as grader:
        pid = pid_of(grader)
        assert b"sk-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        for stream in (1, 2):
            assert Path(f"/proc/{pid}/fd/{stream}").readlink() == Path("/dev/null")
        opened = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
        assert not [name for name in opened if "references" in name], "read once, at the start"


@pytest.mark.spec("EVID-02")
def test_a_fault_in_the_process_is_told_without_what_it_was_about(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("the answer is SECRETGENE")

    monkeypatch.setattr(grader_child, "grade_text", broken)
    tasks = {task.id: task for task in release.tasks}
    references = load_references(release)
    known = {
        name: grader_child.Graded(
            grader_child.PublicTask(name, task.answer_format, task.options), references[name]
        )
        for name, task in tasks.items()
    }
    ours, theirs = grader_process.socket.socketpair()
    with ours, theirs:
        served = threading.Thread(target=grader_child.serve, args=(theirs, known, os.getppid()))
        served.start()
        grader_process.send(ours, (b"grade", a_task(release).encode(), b"x"), 10)
        kind, why = grader_process.receive(ours, 10)
        assert kind == b"failed"
        assert why.startswith(b"ValueError in broken, line ")
        ours.shutdown(grader_process.socket.SHUT_RDWR)
        served.join(timeout=10)
        assert not served.is_alive()


def test_bytes_that_are_no_frame_are_a_loss_and_no_verdict() -> None:
    for sent in (b"\xff" * 64, b"\x01\x00\x00\x00\x04\xff\xff\xff\xff", b"\x02\x00\x00\x00\x01\x00"):
        ours, theirs = grader_process.socket.socketpair()
        with ours, theirs:
            theirs.sendall(sent)
            theirs.shutdown(grader_process.socket.SHUT_WR)
            with pytest.raises(grader_process.FrameError):
                grader_process.receive(ours, 5)


def test_what_it_answers_is_json_of_a_verdict(release: Release) -> None:
    reference = load_references(release)[a_task(release)]
    public = grader_child.PublicTask(a_task(release), AnswerFormat.TEXT, ())
    kind, verdict = grader_child.answer(
        {"t": grader_child.Graded(public, reference)}, (b"grade", b"t", b"<answer>nowhere</answer>")
    )
    assert kind == b"verdict"
    assert json.loads(verdict) == {
        "format_valid": True, "correct": False, "answer": "nowhere", "reason": "wrong",
        "diagnosis": '"nowhere"',
    }  # fmt: skip
