"""Bad input at the command line: one clear line that names the fix, a meaningful code, nothing lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from catalog.database import Catalog
from catalog.store import Store
from tests.fixtures.command_line import HARNESS, ROOT, rinr
from tests.fixtures.sandboxes import QUICK
from tests.fixtures.stub_server import StubServer

TINY = "tests/fixtures/tiny_model"


def one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The error is the last line, the only one with the program's name, and no traceback."""
    assert done.returncode == code, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("rinr: ")]
    assert len(lines) == 1, done.stderr[-2000:]
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture
def harness(tmp_path: Path) -> Path:
    path = tmp_path / "h.py"
    path.write_text(HARNESS)
    return path


def test_an_unknown_setting_is_named_with_the_nearest_one() -> None:
    one_line(rinr("run", "recipe=ci", "sead=3"), 2, "unknown setting 'sead'", "seed")


def test_a_missing_model_folder_is_named(harness: Path, tmp_path: Path) -> None:
    done = rinr(
        "evaluate",
        "--harness",
        str(harness),
        "--model",
        "/no/such/model",
        "--set",
        f"storage.root={tmp_path}",
    )
    one_line(done, 5, "/no/such/model", "smollm2-135m-instruct")


def test_a_release_whose_digest_does_not_match_is_refused(tmp_path: Path) -> None:
    release = tmp_path / "release"
    shutil.copytree(ROOT / "tests/fixtures/tiny-release", release)
    tasks = release / "public" / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("Answer", "answer", 1))
    one_line(rinr("release", "verify", str(release)), 4, "tasks.jsonl")
    one_line(rinr("run", "recipe=ci", f"release={release}", f"storage.root={tmp_path}"), 4, "tasks.jsonl")


@pytest.mark.parametrize(
    ("code", "word"),
    [("x = 1\n", "run(task, api)"), ("def run(task:\n", "no Python program"), (None, "no harness file")],
)
def test_a_harness_file_without_run_is_refused(tmp_path: Path, code: str | None, word: str) -> None:
    path = tmp_path / "h.py"
    if code is not None:
        path.write_text(code)
    one_line(rinr("evaluate", "--harness", str(path), "--model", TINY), 2, str(path), word)


def test_an_endpoint_that_is_down_is_named(harness: Path, tmp_path: Path) -> None:
    arguments = ["--model", "http://127.0.0.1:9", "--tokenizer", TINY, "--set", f"storage.root={tmp_path}"]
    one_line(rinr("evaluate", "--harness", str(harness), *arguments), 5, "127.0.0.1:9")


def test_an_endpoint_without_token_ids_is_refused(harness: Path, tmp_path: Path) -> None:
    class Wordy(StubServer):
        def _complete(self, body: dict[str, object]) -> dict[str, object]:
            answer = super()._complete(body)
            for choice in answer["choices"]:
                del choice["token_ids"]
            return answer

    with Wordy() as stub:
        arguments = ["--model", stub.url, "--tokenizer", TINY, "--release", "tests/fixtures/tiny-release"]
        settings = ["--set", f"storage.root={tmp_path}", "--set", f"model.served_name={stub.model_name}"]
        one_line(rinr("evaluate", "--harness", str(harness), *arguments, *settings), 5, "token ids")


def test_a_machine_without_a_sandbox_is_told_what_to_install(harness: Path, tmp_path: Path) -> None:
    done = rinr(
        "evaluate",
        "--harness",
        str(harness),
        "--model",
        TINY,
        "--set",
        f"storage.root={tmp_path}",
        PATH="/nonexistent",
        DOCKER_HOST=f"unix://{tmp_path}/none.sock",
    )
    one_line(done, 5, "bubblewrap")


def test_an_unknown_run_is_named_with_the_known_ones(tmp_path: Path) -> None:
    Catalog(tmp_path / "catalog.db").start_run("known", "ci", {}, {})
    one_line(rinr("report", "other", "--root", str(tmp_path)), 2, "other", "known")


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_one_line_and_what_was_stored_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)], check=False
        ).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        done = rinr("run", "recipe=ci", "run_id=full", f"storage.root={disk}", QUICK)
        assert done.returncode in (1, 5), done.stderr[-2000:]
        assert "space" in [line for line in done.stderr.splitlines() if line.startswith("rinr: ")][-1]
        store = Store(disk / "store")
        for path in (disk / "store").rglob("*"):
            if path.is_file() and len(path.name) == 64:
                store.verify(f"sha256:{path.name}")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def run_until(tmp_path: Path, stages: int, settings: list[str], **environment: str) -> subprocess.Popen[str]:
    """A run in a session of its own that has finished so many stages and goes on."""
    child = subprocess.Popen(
        [sys.executable, "-m", "flows", "run", *settings],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    catalog_path = tmp_path / "catalog.db"
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        if catalog_path.exists() and len(Catalog(catalog_path).stages("stopped")) >= stages:
            break
        time.sleep(0.1)
    return child


def ci_run(tmp_path: Path) -> list[str]:
    return ["recipe=ci", "run_id=stopped", f"storage.root={tmp_path}", "schedule.cycles=1", QUICK]


@pytest.mark.slow
def test_a_lost_prefect_server_ends_the_run_in_one_line(tmp_path: Path) -> None:
    child = run_until(tmp_path, 2, ci_run(tmp_path), PREFECT_CLIENT_MAX_RETRIES="1")
    (server,) = [pid for pid, command in _session_of(child.pid) if "flows.prefect_server" in command]
    os.kill(server, signal.SIGKILL)
    _, error = child.communicate(timeout=120)
    assert child.returncode == 5, error[-2000:]
    assert "Prefect server was lost" in error
    assert "run_id=stopped" in error
    assert "Traceback" not in error
    assert _left(child.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 6])
def test_a_killed_run_leaves_nothing_running(tmp_path: Path, stages: int) -> None:
    """In the harness phase, and (after its six stages) while a job trains."""
    child = run_until(tmp_path, stages, ci_run(tmp_path))
    time.sleep(0.5)
    child.kill()
    child.communicate(timeout=60)
    assert _left(child.pid) == []


@pytest.mark.slow
def test_ctrl_c_in_the_middle_leaves_nothing_running_and_the_run_resumes(tmp_path: Path) -> None:
    settings = ci_run(tmp_path)
    child = run_until(tmp_path, 2, settings)
    catalog_path = tmp_path / "catalog.db"
    os.killpg(child.pid, signal.SIGINT)
    _, error = child.communicate(timeout=60)
    assert child.returncode == 130, error[-2000:]
    assert "interrupted" in error
    assert "Traceback" not in error
    assert _left(child.pid) == []
    done_before = {stage.key for stage in Catalog(catalog_path).stages("stopped")}
    assert done_before
    assert Catalog(catalog_path).run("stopped").status == "cancelled"  # type: ignore[union-attr]
    again = rinr("run", *settings)
    assert again.returncode == 0, again.stderr[-2000:]
    stages = Catalog(catalog_path).stages("stopped")
    assert done_before < {stage.key for stage in stages}
    assert len({stage.key for stage in stages}) == len(stages), "no stage was made twice"


def _session_of(leader: int) -> list[tuple[int, str]]:
    """Process id and command line of the processes of a session."""
    found: list[tuple[int, str]] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                command = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append((int(stat.parent.name), command))
        except OSError:
            continue
    return found


def _left(leader: int, seconds: float = 10.0) -> list[tuple[int, str]]:
    """What is still there of a session after the time that ending in good order takes."""
    deadline = time.monotonic() + seconds
    while (left := _session_of(leader)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def test_the_error_codes_are_told_in_one_place() -> None:
    from flows.errors import exit_code
    from verifier.release import ReleaseError

    assert json.dumps([exit_code(ReleaseError("x")), exit_code(RuntimeError("x"))]) == "[4, 1]"
