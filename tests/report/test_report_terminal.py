import io
import threading

import pytest
from rich.console import Console
from synthetic_run import rows

from report.assemble import assemble
from report.progress import RunProgress
from report.terminal import print_run


@pytest.mark.spec("REP-01", "REP-02")
def test_the_end_table_shows_denominators_attempts_and_what_each_split_is_for():
    out = io.StringIO()
    print_run(assemble(rows()), Console(file=out, width=140))
    text = out.getvalue()
    lines = [line for line in text.splitlines() if " Test  " in line or " Val  " in line]
    assert len([line for line in lines if " Test  " in line]) == 12
    assert all("/60" in line for line in lines)
    assert "1 attempt a task" in text
    assert "Val (selection)" in text
    assert "Test (recorded at stage boundaries)" in text


def test_the_end_table_is_whole_in_eighty_columns():
    out = io.StringIO()
    print_run(assemble(rows()), Console(file=out, width=80))
    assert "…" not in out.getvalue()


def test_plain_progress_writes_one_line_an_event_and_few_while_counting():
    out = io.StringIO()
    with RunProgress(out) as progress:
        progress.expect(200)
        progress.phase("h0001", 6, 1)
        with progress.stage("Val, parent", 100, "episodes") as bar:
            for _ in range(100):
                bar.advance()
        progress.note("step 1: \x1b[31mcandidate 2\n adopted")
    lines = out.getvalue().splitlines()
    assert lines[0] == "phase h0001 (1 of 6)"
    assert lines[1] == "h0001 · Val, parent: 100 episodes"
    assert "100/100 episodes done in" in lines[-2]
    assert "\x1b" not in lines[-1]
    assert len(lines) <= 5


def test_time_left_is_told_from_what_was_done():
    progress = RunProgress(io.StringIO(), live=False)
    assert progress.seconds_left() is None
    progress.expect(100)
    with progress.stage("Test", 50, "episodes") as bar:
        bar.advance(25)
        half = progress.seconds_left()
    assert half is not None
    after = progress.seconds_left()
    assert after is not None, "the 25 that were not needed left the expected work"
    assert after == pytest.approx(2 / 3 * half, abs=0.5)


class Closed(io.StringIO):
    def write(self, _text: str, /) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return False


def test_progress_never_raises_into_the_run():
    with RunProgress(Closed()) as progress:
        progress.phase("h0001", 6, 1)
        progress.finish_stage()
        progress.advance()
        with progress.stage("Test", 3, "episodes") as bar:
            bar.advance(1, reward=float("nan"))
            bar.finish()
            bar.finish()
        progress.note("gone")


def test_stages_may_advance_from_many_threads_side_by_side():
    progress = RunProgress(io.StringIO(), live=True)
    with progress:
        progress.phase("h0001", 6, 1)
        bars = [progress.stage(f"candidate {index}", 200, "episodes") for index in range(4)]
        threads = [
            threading.Thread(target=lambda bar=bar: [bar.advance() for _ in range(200)]) for bar in bars
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [bar.done for bar in bars] == [200] * 4
