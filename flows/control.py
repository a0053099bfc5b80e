"""`rinr control`: does selection adopt what is no better as often as chance would, and not more?"""

import tempfile
from math import sqrt
from pathlib import Path

from rich.console import Console

from broker.sandbox.labels import temporary_prefix
from flows.compose import ConfigError
from harness_lab.control import ControlConfig, ControlResult, Kind, run_control


def which(identical: bool, shuffled: bool) -> tuple[Kind, ...]:
    """The controls asked for. ConfigError if there is none."""
    if not identical and not shuffled:
        raise ConfigError("say which control: --identical, --shuffled, or both")
    return (*(("identical",) if identical else ()), *(("shuffled",) if shuffled else ()))


def control(config: ControlConfig, console: Console) -> bool:
    """Run one control and print what was seen beside the null. True if it fits."""
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("control")) as folder:
        found = run_control(config, Path(folder) / "release")
    for line in lines(found):
        console.print(line, highlight=False, soft_wrap=True)
    return found.fits


def lines(found: ControlResult) -> list[str]:
    """What a reader needs: counts with denominators, the prediction, and how far apart they are."""
    config, steps = found.config, found.config.steps
    rate, expected = found.adoptions / steps, found.expected_adoptions / steps
    error = sqrt(max(rate * (1 - rate), 0.25 / steps) / steps)
    low, high = max(0.0, rate - 1.96 * error), min(1.0, rate + 1.96 * error)
    points, predicted = 100 * found.gain / config.val, 100 * found.expected_gain / config.val
    spread = 1.96 * 100 * found.gain_error / config.val
    verdict = "fits the null" if found.fits else "DOES NOT FIT the null: selection is biased"
    return [
        f"{config.kind}: {steps} steps, {config.candidates} candidates, {config.val} Val tasks, "
        f"{config.noise:.0%} of the answers drawn anew, seed {config.seed}; stub model, no sandboxes",
        f"  adoptions  {found.adoptions}/{steps} = {rate:.1%} (95 % {low:.1%} to {high:.1%}); "
        f"null {expected:.1%}; two-sided chance {found.adoption_chance:.2g}",
        f"  mean gain  {points:+.2f} points a step (95 % {points - spread:+.2f} to {points + spread:+.2f}); "
        f"null {predicted:+.2f}",
        f"  decision pages would have said {found.said:.1%} on average",
        f"  {verdict}",
    ]
