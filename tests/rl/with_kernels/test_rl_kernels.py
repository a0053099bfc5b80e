"""The fused kernels compute what the model's own layers compute, forward and backward, without a GPU.

In a process of its own, where Triton's interpreter executes them: `tests.rl.with_kernels.interpreted`. The
package lies in a folder that `./run test` makes; without it these tests are skipped. transformers' torch
functions are the reference, over packs without kernels, as `rl.embedded.fitting` builds them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / ".cache/kernels"
ROUNDING = 1e-5
"""Of outputs, relative; what was measured is below 1e-6."""
ROUNDING_BACK = 1e-4
"""Of the worst gradient of one layer; measured below 1e-5."""
ROUNDING_MODEL = 1e-3
"""Of the worst gradient of a model; measured 4e-5."""

Parts = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    if not KERNELS.is_dir():
        pytest.skip("flash-linear-attention is not in .cache/kernels: `./run test` puts it there")
    out = tmp_path_factory.mktemp("kernels") / "numbers.json"
    command = [sys.executable, "-m", "tests.rl.with_kernels.interpreted", str(KERNELS), str(out)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment)
    assert said.returncode == 0, said.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    "layer",
    [
        "delta net",
        "delta net with a bias",
        "norm",
        "norm of heads",
        "wide norm",
        "mlp",
        "mlp with biases",
    ],
)
def test_a_fused_layer_has_the_output_and_the_gradients_of_the_layer_it_replaces(
    parts: Parts, layer: str
) -> None:
    assert parts[layer]["output"] < ROUNDING
    assert parts[layer]["gradients"] < ROUNDING_BACK


def test_a_delta_net_that_is_told_no_boundaries_is_far_off(parts: Parts) -> None:
    assert parts["delta net without boundaries"]["output"] > 0.1


@pytest.mark.spec("RL-06", "RL-10")
def test_a_model_whose_fit_accepts_the_kernels_is_trained_as_without_them(parts: Parts) -> None:
    model = parts["whole model"]
    assert model["patches"] == model["patches_wanted"] == 10
    assert model["output"] < ROUNDING
    assert model["gradients"] < ROUNDING_MODEL
