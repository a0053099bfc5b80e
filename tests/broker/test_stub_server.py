"""The scripted server is exact to the token, answers as its policy table says, and counts requests."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from broker.client import CompletionsClient
from broker.guidance import host_guidance
from broker.model import Sampling
from tests.fixtures.episodes import release, template
from tests.fixtures.stub_policy import ScriptedPolicy, known_answers
from tests.fixtures.stub_server import StubServer
from verifier.grade import Grader

EXAMPLE = [
    {"role": "user", "content": 'What is the colour of "sky"?'},
    {"role": "assistant", "content": "<answer>blue</answer>"},
]


@pytest.fixture(scope="module")
def policy() -> ScriptedPolicy:
    return ScriptedPolicy(known_answers([release().root]))


def scores(
    policy: ScriptedPolicy, *, example: bool, rows: bool, seed: int = 0, temperature: float = 0.0
) -> list[int]:
    """2 right, 1 valid but wrong, 0 invalid: for each task of the release."""
    grader, points = Grader(release()), list[int]()
    for task in release().tasks:
        shown = f"{task.material_group} | some row\n{task.prompt}" if rows else task.prompt
        system = [{"role": "system", "content": host_guidance(release().inventory())}]
        messages = [*system, *(EXAMPLE if example else []), {"role": "user", "content": shown}]
        verdict = grader.grade(task.id, policy(template().render(messages), seed, temperature))
        points.append(verdict.format_valid + verdict.correct)
    return points


def test_examples_bring_the_format_and_rows_bring_right_answers(policy: ScriptedPolicy) -> None:
    plain = scores(policy, example=False, rows=False)
    shown = scores(policy, example=True, rows=False)
    looked = scores(policy, example=True, rows=True)
    assert plain.count(0) > len(plain) / 2
    assert shown.count(0) == 0
    assert shown.count(2) < len(shown) / 2
    assert looked.count(2) > len(looked) / 2
    assert looked == scores(policy, example=True, rows=True, seed=99), "temperature 0 ignores the seed"


def test_at_temperature_1_the_seed_decides_and_repeats(policy: ScriptedPolicy) -> None:
    runs = [scores(policy, example=True, rows=True, seed=seed, temperature=1.0) for seed in (1, 2, 3, 1)]
    assert runs[0] == runs[3]
    assert len({tuple(run) for run in runs}) > 1


async def test_the_ids_of_the_answer_are_those_of_its_text() -> None:
    with StubServer(policy=lambda prompt, seed, temperature: f"{prompt}|{seed}|{temperature}") as stub:
        client = CompletionsClient(stub.url, stub.model_name)
        ids = template().encode([{"role": "user", "content": "h\u00e9 \U0001f9ec"}])
        whole = await client.complete(ids, Sampling(temperature=1.0, seed=3, max_tokens=200))
        short = await client.complete(ids, Sampling(temperature=1.0, seed=3, max_tokens=4))
        await client.close()
        assert stub.counts == {"completions": 2}
        assert [body["prompt"] for body in stub.bodies] == [list(ids)] * 2
    assert template().decode(whole.token_ids, skip_special=False).endswith("assistant\n|3|1.0<|im_end|>")
    assert whole.finish_reason == "stop"
    assert (short.token_ids, short.finish_reason) == (whole.token_ids[:4], "length")


def test_the_chat_route_is_scripted_too() -> None:
    with StubServer(chat_policy=lambda body: body["messages"][-1]["content"].upper()) as stub:
        body = {"model": "aux", "messages": [{"role": "user", "content": "skip"}]}
        answer = httpx.post(stub.url + "/chat/completions", json=body, trust_env=False).json()
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "SKIP"}
        assert stub.counts["chat"] == 1


def test_as_a_process_it_tells_its_port_and_ends_with_its_parent(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "tests.fixtures.stub_server", "--ready-file", str(ready), "--port", "0"]
    child = subprocess.Popen([*command, "--parent", str(os.getpid())], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < deadline:
            assert child.poll() is None
            time.sleep(0.05)
        told = json.loads(ready.read_text())
        assert told["pid"] == child.pid
        models = httpx.get(told["url"] + "/models", trust_env=False).json()
        assert models["data"][0]["id"] == told["model"]
    finally:
        child.terminate()
        assert child.wait(timeout=10) is not None


def test_in_training_every_other_attempt_is_right_whatever_the_program_shows() -> None:
    training = ScriptedPolicy(known_answers([release().root]), training=True)
    attempts = [scores(training, example=False, rows=False, seed=seed, temperature=1.0) for seed in range(8)]
    for of_one_task in zip(*attempts, strict=True):
        assert set(of_one_task) == {1, 2}
    # Greedy answers are those of an evaluation.
    assert scores(training, example=False, rows=False).count(0) > 0
