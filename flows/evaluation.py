"""`rinr evaluate`: one program, one model, one split, outside any schedule."""

import ast
import asyncio
from pathlib import Path

from rich.console import Console

from broker.harness import Harness
from flows.compose import ConfigError, compose_config
from harness_lab.check import check_program
from report.progress import RunProgress
from tasks.config import RunConfig


def read_harness(path: Path) -> Harness:
    """A program from a file. ConfigError if it is missing, unreadable or has no `run(task, api)`."""
    if not path.is_file():
        raise ConfigError(f"no harness file {path}")
    try:
        code = path.read_text(encoding="utf-8")
        ast.parse(code)
    except (UnicodeDecodeError, SyntaxError) as error:
        raise ConfigError(f"{path} is no Python program: {error}") from error
    found = check_program(code)
    if found.errors:
        raise ConfigError(f"{path}: {found.errors[0]}")
    return Harness(code=code)


def evaluation_config(model: str, release: str, tokenizer: str | None, settings: list[str]) -> RunConfig:
    """The configuration of a single evaluation; a URL becomes an endpoint, or a chat endpoint if so set."""
    overrides = [*settings, f"release={release}"]
    if {"model=chat", "model.inference=chat"} & set(settings):
        if not model.startswith(("http://", "https://")):
            raise ConfigError(f"--model {model}: a chat endpoint is named by its URL")
        overrides = ["model=chat", *(item for item in overrides if item != "model=chat")]
        overrides += [f"model.base_url={model}", *([f"model.name={tokenizer}"] if tokenizer else [])]
    elif model.startswith(("http://", "https://")):
        if tokenizer is None:
            raise ConfigError(
                "--model is a URL: give --tokenizer DIR, the folder of the served model's tokenizer "
                "(or, for a chat endpoint without token ids, --set model=chat --set model.served_name=NAME)"
            )
        overrides += ["model=endpoint", f"model.base_url={model}", f"model.name={tokenizer}"]
    else:
        overrides += [f"model.name={model}"]
    return compose_config(overrides)


def evaluate_once(
    harness: Path,
    model: str,
    release: str,
    split: str,
    tokenizer: str | None,
    settings: list[str],
    console: Console,
) -> None:
    """Measure and print; the measurement is recorded under a run of its own."""
    if split != "val" and split != "test":
        raise ConfigError(f"--split {split}: choose val or test")
    program = read_harness(harness)
    config = evaluation_config(model, release, tokenizer, settings)
    from tasks.alone import evaluate_alone

    with RunProgress() as progress:
        result = asyncio.run(evaluate_alone(config, program, split, progress))
    console.print(
        f"{split}: {result.correct} of {result.total} first answers right ({100 * result.accuracy:.1f} %), "
        f"{result.valid} in a valid format, 1 attempt a task"
    )
