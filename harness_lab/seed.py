"""The initial harness H0, shipped as a program text. Nothing here runs it."""

from importlib.resources import files

from broker.harness import Harness


def seed_harness() -> Harness:
    """H0: a plain loop with `<execute>` and `<answer>`, no examples and no skills."""
    return Harness(code=files("harness_lab").joinpath("programs/h0.py").read_text(encoding="utf-8"))
