"""The `rinr` command line: each command opens what it needs, does one thing, and ends in one line on error.

Heavy imports (Prefect, torch) happen inside the commands, so that help and a finished run answer at once.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from flows import harbor_commands, release_sources
from flows.errors import INTERRUPTED, leave_at_once, report_and_exit

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.add_typer(release_sources.app, name="release")
release_sources.app.add_typer(harbor_commands.export_app, name="export")

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as NAME=VALUE, e.g. recipe=ci seed=3")]


def prepare_environment(root: Path) -> None:
    """Settings that Prefect and Hugging Face read when they are imported: nothing leaves this machine."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_HOME", str(root.resolve() / "prefect"))
    # Errors are ours to report, in one line; the Prefect UI keeps its own copy of the story.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")


@app.command()
def run(overrides: Overrides = None, debug: Debug = False) -> None:
    """Run the whole schedule, or resume a run by its run_id.

    Example: rinr run recipe=laptop seed=3
    """
    from flows.compose import compose_config

    try:
        config = compose_config(overrides or [])
        prepare_environment(Path(config.storage.root))
        from flows.launch import finished_run, launch

        if (report := finished_run(config)) is None:
            report = launch(config)
        typer.echo(f"report: {report}")
    except BaseException as error:
        if type(error).__name__ == "PrefectUnavailable":
            # Prefect's last events have nobody to go to, and its exit would wait for each of them.
            leave_at_once(error, debug=debug)
        if isinstance(error, Exception):
            report_and_exit(error, debug=debug)
        # Ctrl-C, or Prefect's word for SIGTERM.
        print("rinr: interrupted; finished stages are kept, resume with the same run_id", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def evaluate(
    harness: Annotated[Path, typer.Option(help="A program file with run(task, api).")],
    model: Annotated[str, typer.Option(help="A model folder, a model name, or the URL of a running server.")],
    release: Annotated[str, typer.Option(help="A bundled release or a release folder.")] = "open-genomics",
    split: Annotated[str, typer.Option(help="val or test.")] = "val",
    tokenizer: Annotated[
        str | None, typer.Option(help="With a URL: the folder of the served model's tokenizer.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Further settings, NAME=VALUE.")] = None,
    debug: Debug = False,
) -> None:
    """Measure one program with one model on one split: first answers, temperature 0.

    Example: rinr evaluate --harness h.py --model smollm2-135m-instruct --split val
    """
    from flows.evaluation import evaluate_once

    try:
        evaluate_once(harness, model, release, split, tokenizer, settings or [], Console())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        report_and_exit(error, debug=debug)


@app.command()
def worker(
    once: Annotated[bool, typer.Option("--once", help="Serve one handoff request, then end.")] = False,
    root: Annotated[Path, typer.Option(help="The storage folder that holds the catalog.")] = Path("runs"),
    cache: Annotated[Path, typer.Option(help="The cache folder.")] = Path(".cache"),
    debug: Debug = False,
) -> None:
    """Claim published handoff requests, train, validate and publish the results.

    Example: rinr worker --once
    """
    prepare_environment(root)
    from flows.worker import serve

    try:
        served = asyncio.run(serve(root, cache, once=once))
        typer.echo(f"served {served} request{'' if served == 1 else 's'}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        report_and_exit(error, debug=debug)


@app.command()
def report(
    run_id: Annotated[str, typer.Argument(help="The run's id: a folder name under the storage folder.")],
    root: Annotated[Path, typer.Option(help="The storage folder.")] = Path("runs"),
    debug: Debug = False,
) -> None:
    """Write the HTML report of a run again and print its table.

    Example: rinr report laptop-s1-20260101-120000
    """
    from report.write import write_run_report

    try:
        typer.echo(f"report: {write_run_report(root.resolve(), run_id, Console())}")
    except Exception as error:
        report_and_exit(error, debug=debug)


@app.command()
def repair(
    export: Annotated[Path, typer.Argument(help="What the trainer left, e.g. global_step_30/policy.")],
    base: Annotated[Path, typer.Option(help="The folder of the model that training started from.")],
    out: Annotated[Path, typer.Option(help="The model folder to write; new.")],
    dtype: Annotated[str, typer.Option(help="Of the weights: base, bfloat16, float16 or float32.")] = "base",
    debug: Debug = False,
) -> None:
    """Make another trainer's export a whole model folder: template, tokenizer, dtype and architecture.

    Example: rinr repair exports/global_step_30/policy --base models/m0 --out models/m1
    """
    from flows.repair import repair_folder

    try:
        repair_folder(export, base, out, dtype, typer.echo)
    except Exception as error:
        report_and_exit(error, debug=debug)


@app.command()
def replay(
    episode: Annotated[
        str | None, typer.Argument(help="An episode's id or its first digits, or a file (FILE#3 for a line).")
    ] = None,
    root: Annotated[Path, typer.Option(help="The storage folder.")] = Path("runs"),
    run_id: Annotated[str | None, typer.Option("--run", help="Look in this run only.")] = None,
    release: Annotated[str | None, typer.Option(help="The release, if the run does not say.")] = None,
    harness: Annotated[Path | None, typer.Option(help="The program, if it is not in the store.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A model folder: compare the recorded token ids too.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="The cache folder.")] = Path(".cache"),
    debug: Debug = False,
) -> None:
    """Run an episode's program again on the recorded answers and compare every byte that it sends.

    Needs no model. Exit code 0: identical, 1: it differs, and the place is printed, 2: bad input. With --run
    and no episode it lists the run's episodes.

    Example: rinr replay 3f9a12c04b77
    """
    from flows.replay import Sources, list_episodes, replay_episode

    try:
        sources = Sources(root.resolve(), cache.resolve(), run_id, release, harness, tokenizer)
        if episode is None:
            list_episodes(sources, Console())
        elif not replay_episode(episode, sources, Console()):
            raise typer.Exit(1)
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        report_and_exit(error, debug=debug)


@app.command("probe-auxiliary")
def probe_auxiliary(overrides: Overrides = None, debug: Debug = False) -> None:
    """Ask the configured second model once: what it takes, how fast it is, what it costs.

    Takes the settings of `rinr run`. Exit code 5, and one line why, if it is not usable.

    Example: rinr probe-auxiliary auxiliary=chat auxiliary.base_url=http://127.0.0.1:8000/v1 auxiliary.model=m
    """
    from flows.probe import probe_auxiliary as ask

    try:
        asyncio.run(ask(overrides or [], Console()))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        report_and_exit(error, debug=debug)


@app.command()
def doctor(
    sandbox: Annotated[
        Literal["docker", "bubblewrap", "all"] | None,
        typer.Option(help="Prove this back end's isolation, by trying to break out, and nothing else."),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove sandbox environments of earlier versions that nothing uses."),
    ] = False,
    cache: Annotated[Path, typer.Option(help="The cache folder.")] = Path(".cache"),
    debug: Debug = False,
) -> None:
    """Say what is missing on this machine and how to get it. Exit code 3 if something is, or a proof failed.

    Example: rinr doctor --sandbox all
    """
    from flows.doctor import BACK_ENDS, examine, examine_sandboxes, tidy_up

    try:
        if prune:
            tidy_up(cache, Console())
            return
        if sandbox is None:
            complete = examine(cache, Console())
        else:
            complete = examine_sandboxes(cache, BACK_ENDS[sandbox], Console())
        if not complete:
            raise typer.Exit(3)
    except typer.Exit:
        raise
    except Exception as error:
        report_and_exit(error, debug=debug)


@app.command()
def control(
    identical: Annotated[
        bool, typer.Option("--identical", help="Candidates of other bytes and the parent's behaviour.")
    ] = False,
    shuffled: Annotated[
        bool, typer.Option("--shuffled", help="Abler candidates, but permuted references.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Harness steps.")] = 200,
    val: Annotated[int, typer.Option(min=6, help="Val tasks.")] = 90,
    candidates: Annotated[int, typer.Option(min=1, help="Candidates a step.")] = 3,
    noise: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the answers drawn anew in each evaluation.")
    ] = 0.3,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    debug: Debug = False,
) -> None:
    """Null controls: steps in which nothing is better, and how often selection adopts all the same.

    Exit code 0: adoptions and gain are those of the null, 1: they are not.

    Example: rinr control --identical --shuffled
    """
    from flows.control import ControlConfig, which
    from flows.control import control as run_one

    try:
        settings = {"steps": steps, "val": val, "candidates": candidates, "noise": noise, "seed": seed}
        done = [
            run_one(ControlConfig.model_validate({"kind": kind, **settings}), Console())
            for kind in which(identical, shuffled)
        ]
        if not all(done):
            raise typer.Exit(1)
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        report_and_exit(error, debug=debug)


def main() -> None:
    """Entry point of the console script."""
    app()
