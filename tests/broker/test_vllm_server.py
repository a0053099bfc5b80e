"""vLLM as a server of the run's own: what it is told, how it fails, and that nothing of it stays.

The server is a stand-in with vLLM's flags and routes (`tests/fixtures/vllm_server.py`), started by the very
code that starts vLLM; `tests/gpu/vllm_service.py` does the same with vLLM on a GPU.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from broker import vllm_server
from broker.client import CompletionsClient
from broker.endpoint import EndpointSettings
from broker.errors import ModelUnavailable, ServiceRefused
from broker.gpu_memory import MemoryWatch, chosen, devices
from broker.inference import InferenceService, InferenceSpec
from broker.model import Sampling
from broker.process_group import processes
from broker.service_log import ServiceLog
from broker.vllm_server import VllmProcess
from broker.vllm_settings import VllmSettings

FIXTURES = Path(__file__).parents[1] / "fixtures"
TINY = FIXTURES / "tiny_model"
FAKE = ("python", "-m", "tests.fixtures.vllm_server")


def settings(**changes: Any) -> VllmSettings:
    return VllmSettings.model_validate({"command": FAKE, "start_seconds": 60, **changes})


def process(tmp_path: Path, **changes: Any) -> VllmProcess:
    return VllmProcess(
        TINY, settings(**changes), context_tokens=512, sequences=4, seed=3, log=tmp_path / "vllm.log"
    )


def service(tmp_path: Path, **changes: Any) -> InferenceService:
    impatient = EndpointSettings(timeout_seconds=2, attempts=1)
    spec = InferenceSpec(
        kind="vllm", max_batch=4, context_tokens=512, vllm=settings(**changes), settings=impatient
    )
    return InferenceService(spec, TINY, ServiceLog(tmp_path))


def group_of(one: InferenceService) -> int:
    pid = one._process.pid  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    assert pid is not None
    return pid


def living(group: int) -> list[int]:
    return [one.pid for one in processes() if one.group == group]


def server_of(group: int) -> int:
    """The process that the attendant started."""
    return next(one.pid for one in processes() if one.parent == group and "python" in one.name)


async def asked(one: InferenceService) -> int:
    client = one._client  # pyright: ignore[reportPrivateUsage]
    assert isinstance(client, CompletionsClient)
    answer = await client.complete(tuple(range(20, 40)), Sampling(temperature=0.0, seed=0, max_tokens=8))
    return len(answer.token_ids)


# -- what it is told --------------------------------------------------------------------------------------


@pytest.mark.spec("HOST-10", "HOST-12")
def test_the_command_line_holds_the_run_s_settings_and_no_default_of_the_folder() -> None:
    found = VllmSettings(devices=(2, 3), arguments=("--max-num-batched-tokens", "8192"), enforce_eager=True)
    words = found.words(TINY, name="n", port=7, context_tokens=1024, sequences=64, seed=5)
    pairs = dict(pairwise(words))
    assert pairs["--model"] == str(TINY)
    assert pairs["--max-model-len"] == "1024"
    assert pairs["--max-num-seqs"] == "64"
    assert pairs["--tensor-parallel-size"] == "2"
    assert pairs["--dtype"] == "float32"
    assert pairs["--host"] == "127.0.0.1"
    assert pairs["--generation-config"] == "vllm"
    assert words[-2:] == ["--max-num-batched-tokens", "8192"]
    assert found.variables()["CUDA_VISIBLE_DEVICES"] == "2,3"
    served = VllmSettings(command=("/opt/vllm", "serve")).words(
        TINY, name="n", port=7, context_tokens=1, sequences=1, seed=0
    )
    assert served[:3] == ["/opt/vllm", "serve", str(TINY)]


@pytest.mark.spec("HOST-12")
@pytest.mark.parametrize("word", ["--dtype=half", "--seed", "--generation-config"])
def test_further_arguments_cannot_undo_what_the_run_sets(word: str) -> None:
    with pytest.raises(ValueError, match=r"must not hold --.*: the run sets it"):
        VllmSettings(arguments=(word, "1"))


@pytest.mark.spec("HOST-10")
@pytest.mark.parametrize("command", [("/nowhere/bin/vllm", "serve"), VllmSettings().command])
def test_a_missing_vllm_is_named_before_anything_starts(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServiceRefused, match=r"needs vLLM: pip install .*model=endpoint") as caught:
        process(tmp_path, command=command).start()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "vllm.log").exists()


# -- start ------------------------------------------------------------------------------------------------


@pytest.mark.spec("HOST-10", "HAND-04")
async def test_it_serves_the_next_folder_after_the_first_and_leaves_no_worker(tmp_path: Path) -> None:
    for folder in (TINY, TINY):
        one = service(tmp_path)
        try:
            await one.start()
            assert await asked(one) == 8
            assert await one.usable()
            group = group_of(one)
            assert len(living(group)) == 4, "attendant, server, a worker, and one that lost its parent"
        finally:
            await one.stop()
        assert living(group) == [], folder
    events = [json.loads(line)["event"] for line in (tmp_path / "services.jsonl").read_text().splitlines()]
    assert events == ["started", "released"] * 2
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["vllm-0001.log", "vllm-0002.log"]


@pytest.mark.spec("HOST-10")
def test_a_slow_start_is_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    with process(tmp_path, environment={"FAKE_VLLM_SERVER": "slow"}) as server:
        assert time.monotonic() - began > 3
        assert server.alive


@pytest.mark.spec("HOST-10")
async def test_a_start_without_end_is_ended_at_its_limit_with_its_workers(tmp_path: Path) -> None:
    hanging = process(tmp_path, environment={"FAKE_VLLM_SERVER": "hang"})
    hanging.launch()

    def workers() -> list[int]:
        lines = (tmp_path / "vllm.log").read_text().splitlines()
        return [int(line.split()[1]) for line in lines if "worker" in line]

    await until(lambda: len(workers()) == 2)
    hanging._deadline = time.monotonic()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ModelUnavailable, match="vLLM did not serve within 60 s: "):
        await asyncio.to_thread(hanging.wait_until_ready)
    assert not set(workers()) & {one.pid for one in processes()}


CAUSES = {
    "memory": "too little memory: lower model.vllm.gpu_memory_utilization",
    "held": "somebody else holds memory of the device",
    "architecture": r"knows no such architecture.*\(ValueError: Model architectures \['Foo'\]",
    "missing": "installation is broken or missing: pip install vllm, or model=endpoint",
    "context": "shorter than budgets.context_tokens",
    "device": "finds no GPU",
    "unknown": "ended with status 1 at start: .*RuntimeError|a sentence",
}


@pytest.mark.spec("HOST-10")
@pytest.mark.parametrize("fault", CAUSES)
def test_an_early_end_is_told_at_once_with_its_cause_and_the_log(fault: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ModelUnavailable, match=CAUSES[fault]) as caught:
        process(tmp_path, environment={"FAKE_VLLM_SERVER": fault}, start_seconds=600).start()
    assert time.monotonic() - began < 60, "not the whole start time"
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "vllm.log") in str(caught.value)
    lasting = fault in ("architecture", "missing", "context", "device")
    assert isinstance(caught.value, ServiceRefused) == lasting, "what cannot pass is not tried again"


@pytest.mark.spec("HOST-10", "HAND-04")
async def test_an_engine_that_dies_of_its_first_request_is_found_at_the_start_with_its_own_words(
    tmp_path: Path,
) -> None:
    """Health and list of models are the server's; the engine is another process behind it."""
    one = service(tmp_path, environment={"FAKE_VLLM_SERVER": "first"})
    with pytest.raises(ModelUnavailable, match=CAUSES["memory"]) as caught:
        await one.start()
    assert "\n" not in str(caught.value)
    assert not one.alive
    log = (tmp_path / "vllm-0001.log").read_text().splitlines()
    workers = {int(line.split()[1]) for line in log if line.startswith("worker")}
    assert len(workers) == 2
    assert not workers & {process.pid for process in processes()}


@pytest.mark.spec("HOST-10")
def test_a_port_that_another_process_took_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = [other.getsockname()[1]]
        free = vllm_server._free_port  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr("broker.vllm_server._free_port", lambda: taken.pop() if taken else free())
        with process(tmp_path) as server:
            assert server.url != f"http://127.0.0.1:{other.getsockname()[1]}"


@pytest.mark.spec("HOST-10")
def test_another_server_on_the_same_port_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM shares its port with whoever asks for that too, so that both answer in turn."""
    with process(tmp_path / "..") as other:
        port = int(other.url.rpartition(":")[2])
        monkeypatch.setattr("broker.vllm_server._free_port", lambda: port)
        hanging = process(tmp_path, environment={"FAKE_VLLM_SERVER": "hang"}, start_seconds=2)
        with pytest.raises(ModelUnavailable, match="did not serve within 2 s"):
            hanging.start()


# -- death ------------------------------------------------------------------------------------------------


@pytest.mark.spec("HOST-10", "HAND-04")
@pytest.mark.parametrize("victim", ["server", "attendant"])
async def test_a_killed_server_is_noticed_and_its_workers_end(victim: str, tmp_path: Path) -> None:
    one = service(tmp_path)
    try:
        await one.start()
        group = group_of(one)
        os.kill(server_of(group) if victim == "server" else group, signal.SIGKILL)
        await until(lambda: not one.alive)
        assert not await one.usable()
        if victim == "server":
            with pytest.raises(ModelUnavailable, match="did not answer"):
                await asked(one)
    finally:
        await one.stop()
    assert living(group) == []


@pytest.mark.spec("HOST-10")
@pytest.mark.parametrize("victim", ["server", "everything"])
async def test_a_stopped_server_is_found_unusable_and_ends_all_the_same(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.inference._HEALTH_SECONDS", 1.0)
    monkeypatch.setattr("broker.vllm_server._STOP_SECONDS", 1.0)
    one = service(tmp_path)
    try:
        await one.start()
        group = group_of(one)
        if victim == "server":
            os.kill(server_of(group), signal.SIGSTOP)
        else:
            os.killpg(group, signal.SIGSTOP)
        with pytest.raises(ModelUnavailable, match="no whole answer"):
            await asked(one)
        assert one.alive
        assert not await one.usable()
    finally:
        await one.stop()
    assert living(group) == []


@pytest.mark.spec("HOST-10")
async def test_it_ends_with_its_workers_when_the_run_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.broker.test_vllm_server import process\n"
        f"server = process(Path({str(tmp_path)!r})).start(); print(server.pid, flush=True); time.sleep(60)"
    )
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", code),
        cwd=FIXTURES.parents[1],
        stdout=asyncio.subprocess.PIPE,
    )
    assert run.stdout is not None
    group = int(await run.stdout.readline())
    assert living(group)
    run.kill()
    await run.wait()
    await until(lambda: not living(group))


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


# -- GPU memory -------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one GPU, whose memory the stand-in's workers take while they live."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{FIXTURES / 'fake_gpu'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPU", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


@pytest.mark.spec("HAND-04")
async def test_release_proves_the_memory_free_and_records_it(gpu: Path, tmp_path: Path) -> None:
    one = service(tmp_path, devices=(0,))
    try:
        await one.start()
        # The workers take their memory a moment after the server is there.
        await until(lambda: devices()[0].used == 100 + 2 * 4096)
    finally:
        await one.stop()
    assert devices()[0].used == 100
    released = json.loads((tmp_path / "services.jsonl").read_text().splitlines()[-1])
    assert released["event"] == "released"
    assert released["before"] == released["after"] == [{"gpu": 0, "used_mib": 100, "total_mib": 81920}]


@pytest.mark.spec("HAND-04", "HOST-10")
@pytest.mark.parametrize("kind", ["embedded", "command"])
async def test_every_server_of_the_run_is_released_with_the_same_proof(
    kind: str, gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("python", "-m", "tests.fixtures.stub_server")
    spec = InferenceSpec.model_validate(
        {"kind": kind, "command": command, "context_tokens": 512, "threads": 1}
    )
    one = InferenceService(spec, TINY, ServiceLog(tmp_path))
    await one.start()
    group = group_of(one)
    assert await asked(one) <= 8
    await one.stop()
    assert living(group) == []
    started, released = map(json.loads, (tmp_path / "services.jsonl").read_text().splitlines())
    assert (started["kind"], released["before"]) == (kind, released["after"])
    await one.start()
    (gpu / "1").write_text("5000")
    monkeypatch.setattr("broker.inference.FREE_SECONDS", 1.0)
    with pytest.raises(ModelUnavailable, match=r"has ended, but its GPU memory was not free.*process 1 "):
        await one.stop()


@pytest.mark.spec("HAND-04")
async def test_memory_that_stays_taken_is_an_error_that_names_who_holds_it(
    gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.inference.FREE_SECONDS", 1.0)
    one = service(tmp_path, devices=(0,))
    await one.start()
    group = group_of(one)
    await until(lambda: len(list(gpu.glob("[0-9]*"))) == 2)
    monkeypatch.setenv("FAKE_GPU_LEAK", "3000")
    with pytest.raises(
        ModelUnavailable,
        match=r"vLLM has ended, but its GPU memory was not free within 1 s: GPU 0 3,100 MiB, 100 before the "
        r"start; held by process 4242 \(ghost\) with 3,000 MiB",
    ):
        await one.stop()
    assert living(group) == []


@pytest.mark.spec("HAND-04")
def test_a_machine_without_a_gpu_has_nothing_to_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert devices() == ()
    assert MemoryWatch().prove_free("it") == ()


@pytest.mark.spec("HAND-04")
def test_devices_are_those_named_or_visible(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device.index for device in chosen()] == [0]
    assert [device.index for device in chosen(("GPU-fake-0",))] == [0]
    # A slice of a device is watched with all devices.
    assert [device.index for device in chosen(("MIG-1",))] == [0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert [device.index for device in chosen()] == [0]
