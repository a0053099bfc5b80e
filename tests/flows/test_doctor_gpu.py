"""What `rinr doctor` says of GPUs and vLLM; a stand-in tells the memory."""

import os
from pathlib import Path

import pytest

from flows.doctor_gpu import gpu_findings

FAKE = Path(__file__).parents[1] / "fixtures" / "fake_gpu"


@pytest.mark.spec("HOST-10", "HAND-04")
def test_doctor_names_each_gpu_and_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FAKE}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPU", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert next(gpu_findings()).detail == "Fake H1, 100 of 81,920 MiB used"
    (tmp_path / str(os.getpid())).write_text("2048")
    [gpu, vllm] = gpu_findings()
    assert gpu.state == "note"
    assert gpu.detail.endswith(f"held by process {os.getpid()} (python) with 2,048 MiB")
    assert vllm.name == "vLLM"


@pytest.mark.spec("HOST-10")
def test_doctor_says_how_to_get_vllm_and_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [gpu, vllm] = gpu_findings()
    assert (gpu.state, vllm.state) == ("note", "note")
    assert "pip install vllm" in vllm.detail
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.23.0")
    assert list(gpu_findings())[-1].detail == "0.23.0, 0 GPUs visible"
