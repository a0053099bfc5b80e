"""The grader's process: it ends with its owner, is replaced when it breaks, and holds nobody up."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from grader_processes import a_task, alive, gone, pid_of

from tests.fixtures.releases import tiny_release
from verifier import grader_process
from verifier.errors import GraderLost
from verifier.grade import Grader
from verifier.release import Release, ReleaseError


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return tiny_release(tmp_path_factory.mktemp("release"))


@pytest.fixture
def grader(release: Release) -> Generator[Grader]:
    with Grader(release) as opened:
        yield opened


@pytest.mark.spec("EVID-02")
def test_the_identity_is_there_before_any_process_and_any_reading(tmp_path: Path) -> None:
    release = tiny_release(tmp_path)
    release.references_path.unlink()
    grader = Grader(release)
    assert grader.identity == release.verifier_identity()
    assert grader.pid is None
    with pytest.raises(ReleaseError, match=r"release tiny: .*references.jsonl"):
        grader.start()


@pytest.mark.spec("DATA-02")
def test_references_changed_after_the_release_was_loaded_are_refused(tmp_path: Path) -> None:
    for name in ("private/references.jsonl", "public/tasks.jsonl"):
        release = tiny_release(tmp_path / name.replace("/", "-"))
        path = release.root / name
        path.write_bytes(path.read_bytes().replace(b"Porto", b"Paris").replace(b'"Portugal"', b'"Narnia"'))
        with pytest.raises(ReleaseError, match=f"{name} was changed") as caught:
            Grader(release).start()
        assert "Narnia" not in str(caught.value)


def test_close_ends_the_process_and_what_comes_after_is_an_error(release: Release) -> None:
    with Grader(release) as grader:
        pid = pid_of(grader)
        assert alive(pid)
    assert not Path(f"/proc/{pid}").exists(), "it was collected as well"
    grader.close()
    with pytest.raises(GraderLost, match="was closed"):
        grader.grade(release.tasks[0].id, "x")


def test_a_grader_that_nobody_holds_any_more_leaves_no_process(release: Release) -> None:
    grader = Grader(release).start()
    pid = pid_of(grader)
    del grader
    assert gone(pid, 5)


def test_an_unknown_task_is_the_callers_bug(grader: Grader) -> None:
    with pytest.raises(KeyError, match="nobody"):
        grader.grade("nobody", "x")


def test_a_killed_process_is_replaced_and_the_answer_is_the_same(grader: Grader, release: Release) -> None:
    task = a_task(release)
    before = grader.grade(task, "<answer>Norway</answer>")
    for _ in range(3):
        first = pid_of(grader)
        os.kill(first, signal.SIGKILL)
        assert grader.grade(task, "<answer>Norway</answer>") == before
        assert pid_of(grader) != first
        assert gone(first, 5)


async def test_a_process_killed_under_a_request_is_replaced_too(grader: Grader, release: Release) -> None:
    first = pid_of(grader)
    os.kill(first, signal.SIGSTOP)
    asking = [
        asyncio.ensure_future(grader.grade_aside(task.id, "<answer>A</answer>")) for task in release.tasks
    ]
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    verdicts = await asyncio.gather(*asking)
    assert [verdict.answer for verdict in verdicts if verdict.format_valid]
    assert pid_of(grader) != first


@pytest.mark.spec("HOST-07")
async def test_a_process_that_keeps_being_killed_is_a_loss_and_never_a_wrong_answer(release: Release) -> None:
    over = threading.Event()
    grader = Grader(release)

    def kill_every_one() -> None:
        while not over.wait(0.001):
            if (pid := grader.pid) is not None:
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_every_one)
    killer.start()
    try:
        with pytest.raises(GraderLost, match=r"the grader's process is gone.*, and the one after it is gone"):
            grader.grade(release.tasks[0].id, "<answer>A</answer>")
        with pytest.raises(GraderLost):
            await grader.grade_aside(release.tasks[0].id, "<answer>A</answer>")
    finally:
        over.set()
        killer.join()
    assert grader.grade(release.tasks[0].id, "nothing").reason == "tags = 0", "a later request starts afresh"
    grader.close()


def test_a_process_that_cannot_be_started_is_a_loss(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader_process.sys, "executable", "/nonexistent/python")
    with pytest.raises(GraderLost, match="could not be started"):
        Grader(release).start()
    monkeypatch.setattr(grader_process.sys, "executable", "/bin/true")
    with pytest.raises(GraderLost, match="is gone"):
        Grader(release).start()


async def test_a_frozen_process_is_replaced_after_the_deadline_and_the_event_loop_goes_on(
    release: Release,
) -> None:
    grader = Grader(release, seconds=0.4).start()
    frozen = pid_of(grader)
    os.kill(frozen, signal.SIGSTOP)
    asking = asyncio.ensure_future(grader.grade_aside(a_task(release), "<answer>Norway</answer>"))
    longest, last = 0.0, time.monotonic()
    while not asking.done():
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert (await asking).format_valid
    assert pid_of(grader) != frozen
    assert gone(frozen, 5)
    assert longest < 0.3
    grader.close()


def test_a_frozen_process_holds_up_a_plain_call_no_longer_than_the_deadline(release: Release) -> None:
    grader = Grader(release, seconds=0.3).start()
    os.kill(pid_of(grader), signal.SIGSTOP)
    started = time.monotonic()
    assert grader.grade(a_task(release), "<answer>Norway</answer>").format_valid
    assert time.monotonic() - started < 10
    grader.close()


async def test_many_at_once_get_each_their_own_verdict_whatever_is_cancelled(
    grader: Grader, release: Release
) -> None:
    task, luck = a_task(release), random.Random(5)

    async def ask(number: int) -> None:
        text = f"<answer>word {number} {'x' * luck.choice((0, 100, 70_000))}</answer>"
        verdict = await grader.grade_aside(task, text)
        assert verdict.answer is not None
        assert verdict.answer.split()[1] == str(number)

    for _ in range(5):
        asking = [asyncio.ensure_future(ask(number)) for number in range(60)]
        await asyncio.sleep(0.002)
        for victim in luck.sample(asking, 20):
            victim.cancel()
        # A plain call between them, from the loop's own thread: it reads the others' answers on its way.
        assert grader.grade(task, "<answer>plain</answer>").answer == "plain"
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert [
            one for one in results if one is not None and not isinstance(one, asyncio.CancelledError)
        ] == []


def test_threads_may_share_a_grader(grader: Grader, release: Release) -> None:
    task, wrong = a_task(release), list[int]()

    def ask(number: int) -> None:
        for _ in range(50):
            if grader.grade(task, f"<answer>{number}</answer>").answer != str(number):
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_grader_outlives_the_event_loops_that_used_it(grader: Grader, release: Release) -> None:
    async def one() -> bool:
        return (await grader.grade_aside(a_task(release), "<answer>x</answer>")).format_valid

    async def given_up() -> None:
        asking = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        asking.cancel()

    pid = pid_of(grader)
    for _ in range(3):
        assert asyncio.run(one())
        asyncio.run(given_up())
    assert pid_of(grader) == pid


async def test_the_longest_text_holds_up_nobody(grader: Grader, release: Release) -> None:
    text = f"<answer>{'word ' * 1_600_000}</answer>"
    asking = asyncio.ensure_future(grader.grade_aside(a_task(release), text))
    longest, last = 0.0, time.monotonic()
    while not asking.done():
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert (await asking).format_valid
    assert longest < 0.5


def test_lone_surrogates_and_nul_come_through(grader: Grader, release: Release) -> None:
    verdict = grader.grade(a_task(release), "\ud800 <answer>a\ud800\x00b</answer>")
    assert verdict.answer == "a?\x00b"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_its_like_change_no_verdict(
    grader: Grader, release: Release, sent: signal.Signals
) -> None:
    first = pid_of(grader)
    os.kill(first, sent)
    if sent is signal.SIGTERM:
        assert gone(first, 5)
    assert grader.grade(a_task(release), "<answer>Norway</answer>").format_valid
    assert (pid_of(grader) == first) is (sent is signal.SIGINT)


def test_a_verdict_costs_its_owner_little(grader: Grader, release: Release) -> None:
    """Not the benchmark: a bound that only a mistake passes (docs/measurements.md has the figures)."""
    task, text = a_task(release), "reasoning " * 300 + "<answer>Norway</answer>"

    async def many() -> None:
        for _ in range(10):
            await asyncio.gather(*(grader.grade_aside(task, text) for _ in range(20)))

    asyncio.run(many())
    started = time.process_time()
    asyncio.run(many())
    assert (time.process_time() - started) / 200 < 0.001
