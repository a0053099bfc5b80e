"""The embedded engine as a server process: vLLM's shapes, one-line refusals, no process left behind."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.engine.default_model import model_digest
from broker.engine.process import EngineProcess
from broker.errors import ModelUnavailable
from tests.fixtures.tiny_llama import log_probabilities, plain_model, write_tiny_llama

PROMPT = list(range(20, 60))
SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": 5,
    "max_tokens": 9,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[EngineProcess]:
    with EngineProcess(folder, device="cpu", max_batch=4, max_length=128, threads=1) as process:
        yield process


def _complete(served: EngineProcess, **changes: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": PROMPT, "logprobs": 1, "return_token_ids": True, **SAMPLING, **changes}
    return httpx.post(f"{served.base_url}/completions", json=body, timeout=60, trust_env=False)


@pytest.mark.spec("HOST-06")
def test_a_completion_carries_ids_and_log_probabilities_in_vllms_shape(
    served: EngineProcess, folder: Path
) -> None:
    choice = _complete(served).json()["choices"][0]
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 9
    assert choice["finish_reason"] == "length"
    scores = log_probabilities(plain_model(folder), PROMPT, choice["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(scores, abs=1e-4)
    assert _complete(served).json()["choices"][0]["token_ids"] == choice["token_ids"]
    assert _complete(served, seed=6).json()["choices"][0]["token_ids"] != choice["token_ids"]


async def test_concurrent_requests_get_their_own_answers(served: EngineProcess) -> None:
    expected = [_complete(served, seed=seed).json()["choices"][0]["token_ids"] for seed in range(10)]
    responses = await asyncio.gather(*(asyncio.to_thread(_complete, served, seed=seed) for seed in range(10)))
    assert [response.json()["choices"][0]["token_ids"] for response in responses] == expected


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt": "a text"}, "prompt: Input should be a valid"),
        ({"prompt": []}, "the prompt is empty"),
        ({"max_tokens": 100}, "40 prompt tokens and max_tokens=100 exceed the engine's 128"),
        ({"top_p": 0.9}, "serves top_p=1.0 only"),
        ({"stream": True}, "stream"),
        ({"best_of": 3}, "best_of"),
        ({"temperature": -1}, "temperature"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_served_is_refused_with_one_line(
    served: EngineProcess, changes: dict[str, Any], text: str
) -> None:
    response = _complete(served, **changes)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert text in message
    assert "\n" not in message


def test_the_served_identity_follows_the_weights(served: EngineProcess, folder: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", seed=3)
    assert served.identity() == model_digest(folder)
    assert served.load_weights(other) == model_digest(other) == served.identity()
    assert served.load_weights(folder) == model_digest(folder)
    with pytest.raises(ModelUnavailable, match="has no config"):
        served.load_weights(tmp_path)


def test_stats_count_generated_computed_and_reused_tokens(served: EngineProcess) -> None:
    before = served.stats()
    for seed in (1, 2):
        _complete(served, seed=seed)
    after = served.stats()
    assert after["generated_tokens"] - before["generated_tokens"] == 18
    prompts = after["prompt_tokens_computed"] + after["prompt_tokens_reused"]
    assert prompts == after["prompt_tokens"] == before["prompt_tokens"] + 2 * len(PROMPT)
    assert after["prompt_tokens_reused"] > before["prompt_tokens_reused"]
    assert after["tokens_per_second"] > 0


def test_it_listens_on_the_loopback_only(served: EngineProcess) -> None:
    assert _listening_addresses(_port(served)) == {"0100007F"}


@pytest.mark.spec("HAND-04")
def test_it_is_gone_after_stop(folder: Path) -> None:
    process = EngineProcess(folder, device="cpu", max_batch=1, max_length=64, threads=1).start()
    pid, port = process.pid, _port(process)
    process.stop()
    process.stop()
    assert not Path(f"/proc/{pid}").exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    with pytest.raises(ModelUnavailable, match="not started"):
        _ = process.base_url


def _port(process: EngineProcess) -> int:
    return int(process.base_url.split(":")[2].removesuffix("/v1"))


def _listening_addresses(port: int) -> set[str]:
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    listening = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, number in listening if int(number, 16) == port}


def test_a_child_that_dies_at_start_is_reported_with_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"ended with status 1 at start: .*has no config\.json"):
        EngineProcess(tmp_path).start()


def test_the_engine_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child_code = (
        "import os, time; from pathlib import Path; from broker.server_child import end_with_parent\n"
        f"end_with_parent(os.getppid()); Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    parent_code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child_code!r}])"
    parent = subprocess.Popen([sys.executable, "-c", parent_code])
    try:
        child = _wait_for(lambda: int(note.read_text()) if note.exists() and note.read_text() else None, 60)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        _wait_for(lambda: True if _is_gone(child) else None, 10)
    finally:
        parent.kill()
        parent.wait()


def _is_gone(pid: int) -> bool:
    """Ended, though perhaps not yet collected by whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _wait_for(probe: Any, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while (value := probe()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value
