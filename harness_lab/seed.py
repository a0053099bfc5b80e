"""The initial harnesses, shipped as program texts. Nothing here runs them."""

from importlib.resources import files
from typing import Literal

from broker.harness import Harness

Seed = Literal["h0", "skills"]


def seed_harness(name: Seed = "h0") -> Harness:
    """`h0`: a plain loop with `<execute>` and `<answer>`, no examples and no skills.

    `skills`: such a loop as a skill file, for the improver `skills` (PROP-09).
    """
    return Harness(code=files("harness_lab").joinpath(f"programs/{name}.py").read_text(encoding="utf-8"))
