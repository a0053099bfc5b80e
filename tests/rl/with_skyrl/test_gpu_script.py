"""The GPU script that measures SkyRL's worker beside the embedded trainer, on a CPU and a tiny model.

In a process of its own: it tells SkyRL that the CPU is the GPU.
"""

import json
import subprocess
import sys
from pathlib import Path


def test_the_peer_of_the_large_model_runs_through_skyrls_worker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.train_4b_skyrl", str(tmp_path), "--tiny"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert said.returncode == 0, said.stderr
    found = json.loads((tmp_path / "train_4b_skyrl.json").read_text())
    assert not [part for part in found.values() if "error" in part]
    one, two = found["rows, micro-batch 1"], found["rows, micro-batch 2"]
    assert one["rows"] == found["build"]["rows"]
    for part in (one, two):
        assert part["computed_tokens"] == part["rows"] * part["padded_to"] > part["plain_tokens"]
        # Both passes of the worker are of one model, and something was learnt.
        assert part["gap_score_update"] < 1e-3
        assert part["gradient_norm"] > 0
