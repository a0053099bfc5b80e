"""`rinr release import lab-bench|biomni`, `split` and `build`: known benchmarks, and splits of a draft."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flows.release_commands import (
    Debug,
    DraftFolder,
    Drop,
    Into,
    app,
    gather,
    import_app,
    run_command,
    say_frozen,
)

if TYPE_CHECKING:
    from verifier.draft import Draft
    from verifier.release import Release
    from verifier.task import Split

Size = Annotated[str, typer.Option(help="A count of tasks, or a share with a point, e.g. 0.1.")]


@import_app.command("lab-bench")
def import_lab_bench(
    folder: Annotated[
        Path, typer.Argument(help="The repository's or the data set's folder, or one family's.")
    ],
    into: Into,
    no_abstain: Annotated[
        bool,
        typer.Option("--no-abstain", help="Leave out the option to abstain, which upstream always adds."),
    ] = False,
    drop: Drop = None,
    debug: Debug = False,
) -> None:
    """Import DbQA, LitQA2 and ProtocolQA, from JSON lines or from Parquet.

    Example: rinr release import lab-bench LAB-Bench --into drafts/mine --drop duplicate-options
    """

    def work() -> None:
        from verifier.importers.lab_bench import LabBench

        gather(LabBench(folder, abstain=not no_abstain), into, drop)
        show_differences(into)

    run_command(work, debug)


@import_app.command("biomni")
def import_biomni(
    path: Annotated[Path, typer.Argument(help="The benchmark folder, or the Parquet file of Eval1.")],
    into: Into,
    drop: Drop = None,
    debug: Debug = False,
) -> None:
    """Import the GWAS tasks: the causal gene of a locus, and the variant to put first.

    Example: rinr release import biomni biomni-dataset --into drafts/mine --drop label-outside-candidates
    """

    def work() -> None:
        from verifier.importers.biomni import Biomni

        gather(Biomni(path), into, drop)
        show_differences(into)

    run_command(work, debug)


@app.command()
def split(
    draft: DraftFolder,
    ids: Annotated[
        Path | None, typer.Option(help="A JSON file of ids by split; others are left out.")
    ] = None,
    train: Size = "0.8",
    val: Size = "0.1",
    test: Size = "0.1",
    seed: Annotated[str, typer.Option(help="Another seed deals other tasks.")] = "rinr",
    break_groups: Annotated[
        bool, typer.Option("--break-groups", help="Let tasks that share material part; overlaps are counted.")
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="With --ids: every task of the draft must be named.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Deal a draft's tasks: as an id list says, or by hash, groups whole and every subtopic in proportion.

    Example: rinr release split drafts/mine --train 715 --val 90 --test 90
    """

    def work() -> None:
        from verifier.draft import Draft
        from verifier.id_list import read_ids
        from verifier.split import split as deal
        from verifier.split import split_by_ids

        opened = Draft(draft)
        if ids is not None:
            result = split_by_ids(opened, read_ids(ids), complete=complete)
        else:
            sizes: dict[Split, int | float] = {
                "train": _size(train),
                "val": _size(val),
                "test": _size(test),
            }
            result = deal(opened, sizes, seed=seed, break_groups=break_groups)
        for line in result.lines():
            typer.echo(line)
        show_differences(draft)

    run_command(work, debug)


@app.command()
def build(
    recipe: Annotated[str, typer.Argument(help="A recipe of our own, e.g. demo-real, or a TOML file.")],
    destination: Annotated[Path, typer.Argument(help="The release folder to write; must not exist.")],
    data: Annotated[Path, typer.Option(help="The folder that the recipe's paths are below.")],
    store: Annotated[
        Path, typer.Option(help="The store that keeps the lake's files once for all releases.")
    ] = Path("runs/store"),
    debug: Debug = False,
) -> None:
    """Make a whole release from a recipe: import, split, take the lake, seal.

    Example: rinr release build demo-real releases/demo-real --data data
    """

    def work() -> None:
        from catalog.store import Store
        from verifier.build import build as build_release
        from verifier.build import find_recipe
        from verifier.release import Release

        built = build_release(find_recipe(recipe), data, destination, Store(store))
        for record in built.imports:
            typer.echo(f"{record.importer}: {record.tasks} tasks from {record.rows} rows")
            for row in record.dropped:
                typer.echo(f"left out: {row.where}: {row.why}")
        for line in built.split.lines():
            typer.echo(line)
        _show(Release.load(destination, verify=False))
        say_frozen(built.header, destination)

    run_command(work, debug)


def show_differences(folder: Path) -> None:
    """The draft's counts beside the paper's, where it has families of the paper's."""
    from verifier.draft import Draft

    _show(Draft(folder))


def _show(source: "Draft | Release") -> None:
    from verifier.importers.paper import COUNTS, difference_table

    if COUNTS.keys() & source.header.families.keys():
        Console().print(difference_table(source))


def _size(text: str) -> int | float:
    """BadParameter unless it is a whole number or a fraction."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a count nor a share") from None
