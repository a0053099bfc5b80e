"""`rinr release import harbor` and `rinr release export harbor`: Harbor tasks in and out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from flows.release_commands import Debug, Drop, Into, Name, gather, import_app, run_command

if TYPE_CHECKING:
    from verifier.task import Split

export_app = typer.Typer(no_args_is_help=True, help="Write a release in another format.")


@import_app.command("harbor")
def import_harbor(
    folder: Annotated[Path, typer.Argument(help="The folder of one task, or of several.")],
    into: Into,
    licence: Annotated[str, typer.Option(help="Of the tasks that name none, as SPDX, e.g. Apache-2.0.")],
    origin: Annotated[str, typer.Option(help="Where the tasks come from, one line.")] = "",
    assume: Annotated[
        list[str] | None,
        typer.Option(
            "--assume", help="A need that the tasks state and do not have in fact, e.g. network or image."
        ),
    ] = None,
    no_training: Annotated[
        bool, typer.Option("--no-training", help="The tasks ask not to enter training corpora.")
    ] = False,
    drop: Drop = None,
    debug: Debug = False,
) -> None:
    """Import Harbor tasks; what they need that no sandbox gives is kept, and refused when they should run.

    Example: rinr release import harbor tasks --licence Apache-2.0 --into drafts/mine --assume network
    """

    def work() -> None:
        from verifier.importers.harbor import Harbor

        importer = Harbor(
            folder, licence=licence, origin=origin, no_training=no_training, assume=assume or ()
        )
        gather(importer, into, drop)

    run_command(work, debug)


@export_app.command("harbor")
def export_harbor(
    release: Name,
    destination: Annotated[Path, typer.Argument(help="The folder to write; new or empty.")],
    split: Annotated[str, typer.Option(help="train, val or test; all if not given.")] = "",
    debug: Debug = False,
) -> None:
    """Write a release's questions as Harbor tasks. They hold its references: keep them from whom it measures.

    Example: rinr release export harbor open-genomics harbor-tasks --split val
    """

    def work() -> None:
        from verifier.harbor_export import MARKER, export_release
        from verifier.release import find
        from verifier.task import Split

        if split and split not in get_args(Split):
            raise typer.BadParameter(f"--split {split}: choose train, val or test")
        export = export_release(find(release), destination, split=cast("Split | None", split or None))
        for task_id, why in export.left_out:
            typer.echo(f"left out: {task_id}: {why}")
        typer.echo(f"{destination}: {export.tasks} Harbor tasks, graded offline")
        typer.echo(f"they hold the private references, each in its tests/ folder ({MARKER} says so)")

    run_command(work, debug)
