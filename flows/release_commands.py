"""`rinr release ...`: from other people's benchmarks to one frozen digest.

A release is made in three steps: `import` gathers tasks into a draft folder, `split` deals them, `freeze`
seals them. Each command opens what it needs, does one thing, and ends in one line on error.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.console import Console

from flows.errors import report_and_exit

if TYPE_CHECKING:
    from verifier.importers.base import Importer, Kind
    from verifier.layout import Header

app = typer.Typer(no_args_is_help=True, help="Make, check and look after task releases.")
import_app = typer.Typer(no_args_is_help=True, help="Gather tasks from a benchmark into a draft.")
app.add_typer(import_app, name="import")

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Name = Annotated[str, typer.Argument(help="A bundled release or a release folder.")]
DraftFolder = Annotated[Path, typer.Argument(help="A draft folder, as `rinr release import` makes it.")]
Into = Annotated[Path, typer.Option("--into", help="The draft folder: a new one, or one to add to.")]


def known_kinds(drop: list[str] | None) -> list[str] | None:
    """Refuse a kind of problem that does not exist."""
    from verifier.importers.base import Kind

    for kind in drop or []:
        if kind not in get_args(Kind):
            raise typer.BadParameter(f"{kind}: no such kind; one of {', '.join(get_args(Kind))}")
    return drop


Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        callback=known_kinds,
        help="Leave out rows with this kind of problem; they are listed in the release.",
    ),
]


def run_command(work: Callable[[], None], debug: bool) -> None:
    """Do the work; an error becomes one line and an exit code."""
    try:
        work()
    except typer.Exit:
        raise
    except Exception as error:
        report_and_exit(error, debug=debug)


@import_app.command("jsonl")
def import_jsonl(
    file: Annotated[Path, typer.Argument(help="A file with one task a line; docs/releases.md shows one.")],
    into: Into,
    licence: Annotated[str, typer.Option(help="The tasks' licence, as SPDX, e.g. CC-BY-4.0.")],
    origin: Annotated[str, typer.Option(help="Where the tasks come from, one line.")] = "",
    no_training: Annotated[
        bool, typer.Option("--no-training", help="The tasks ask not to enter training corpora.")
    ] = False,
    drop: Drop = None,
    debug: Debug = False,
) -> None:
    """Import tasks written by hand or by a script: one JSON object a line.

    Example: rinr release import jsonl tasks.jsonl --licence CC-BY-4.0 --into drafts/mine
    """

    def work() -> None:
        from verifier.importers.jsonl import JsonLines

        gather(JsonLines(file, licence=licence, origin=origin, no_training=no_training), into, drop)

    run_command(work, debug)


def gather(importer: "Importer", into: Path, drop: list[str] | None) -> None:
    """Add a source to the draft and say what became of it."""
    from verifier.draft import Draft

    record = Draft.create(into).add(importer, cast("list[Kind]", drop or []))
    for row in record.dropped:
        typer.echo(f"left out: {row.where}: {row.why}")
    left = f", {len(record.dropped)} left out" if record.dropped else ""
    typer.echo(f"{into}: {record.tasks} tasks from {record.rows} rows of {record.importer}{left}")
    typer.echo(f"fingerprint {record.fingerprint}")


@app.command()
def lake(
    draft: DraftFolder,
    folder: Annotated[Path, typer.Argument(help="The folder with the lake's files.")],
    store: Annotated[
        Path, typer.Option(help="The store that keeps the files once for all releases; on the same disk.")
    ] = Path("runs/store"),
    debug: Debug = False,
) -> None:
    """Add a folder of files to the draft's data lake. Releases with the same files use their bytes once.

    Example: rinr release lake drafts/mine tables
    """

    def work() -> None:
        from catalog.store import Store
        from verifier.draft import Draft
        from verifier.lake import add_lake

        added = add_lake(Draft(draft), folder, Store(store))
        for remark in added.remarks:
            typer.echo(f"note: {remark}")
        typer.echo(f"{draft}: lake {added.digest}: {len(added.files)} files, {added.size:,} bytes")

    run_command(work, debug)


@app.command()
def freeze(
    draft: DraftFolder,
    destination: Annotated[Path, typer.Argument(help="The release folder to write; must not exist.")],
    name: Annotated[
        str | None, typer.Option(help="The release's name; the folder's name if not given.")
    ] = None,
    licence: Annotated[
        str, typer.Option(help="SPDX expression; the sources' licences together if not given.")
    ] = "",
    note: Annotated[list[str] | None, typer.Option(help="A line for the release's notes.")] = None,
    debug: Debug = False,
) -> None:
    """Seal a draft: audit it, write every digest, and check the result as a stranger would.

    Example: rinr release freeze drafts/mine releases/mine
    """

    def work() -> None:
        from verifier.draft import Draft
        from verifier.freeze import Declared, freeze_draft

        declared = Declared(name=name or destination.name, licence=licence, notes=tuple(note or ()))
        header = freeze_draft(Draft(draft), destination, declared)
        say_frozen(header, destination)

    run_command(work, debug)


def say_frozen(header: "Header", destination: Path) -> None:
    """One line with the digest, and the audit's warnings."""
    from verifier.audit_release import audit_of

    for flag in audit_of(destination).warnings:
        typer.echo(f"warning: {flag.text}")
    typer.echo(f"{destination}: {summary(header)}")


def summary(header: "Header") -> str:
    """Name, digest and counts of a release that was checked, on one line."""
    counts = ", ".join(f"{count} {split}" for split, count in header.counts.items())
    return f"{header.name} {header.digest} ok: {counts}; licence {header.licence}"


@app.command()
def verify(name: Name, debug: Debug = False) -> None:
    """Recompute a release's digest and check every part of it.

    Example: rinr release verify open-genomics
    """

    def work() -> None:
        from verifier.release import locate
        from verifier.verification import verify as verify_folder

        typer.echo(summary(verify_folder(locate(name))))

    run_command(work, debug)


@app.command()
def audit(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="Print the audit as JSON.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the audit as an HTML page too.")] = None,
    debug: Debug = False,
) -> None:
    """Show what a release's tasks give away, share between splits, and find in the lake.

    Example: rinr release audit open-genomics --page audit.html
    """

    def work() -> None:
        from report.audit_page import write
        from report.audit_view import show_audit
        from verifier.audit_release import audit_of
        from verifier.layout import read_header
        from verifier.release import locate

        folder = locate(name)
        header, found = read_header(folder), audit_of(folder)
        if as_json:
            typer.echo(found.model_dump_json(indent=1))
        else:
            show_audit(header.name, found, Console())
        if page is not None:
            typer.echo(f"page: {write(header.name, header.digest, found, page)}", err=as_json)

    run_command(work, debug)


@app.command()
def show(name: Name, debug: Debug = False) -> None:
    """Show what a release or a draft holds: tasks by subtopic and split, sources, what was left out.

    Example: rinr release show open-genomics
    """

    def work() -> None:
        from report.release_view import show_folder
        from verifier.draft import HEADER as DRAFT
        from verifier.release import locate

        folder = Path(name) if (Path(name) / DRAFT).is_file() else locate(name)
        show_folder(folder, Console())

    run_command(work, debug)
