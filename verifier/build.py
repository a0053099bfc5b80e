"""A whole release from a recipe: sources, what may be dropped, splits and lake, declared in one TOML file.

Recipes of our own are in `verifier/recipes`. Paths in a recipe are below a data folder that is given at the
time of building. Equal files give an equal release. Never reads references.
"""

import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from catalog.store import Store
from verifier.draft import Draft
from verifier.freeze import Declared, freeze_draft
from verifier.id_list import read_ids
from verifier.importers.base import Importer, Kind
from verifier.importers.biomni import Biomni
from verifier.importers.jsonl import JsonLines
from verifier.importers.lab_bench import LabBench
from verifier.lake import add_lake
from verifier.layout import Header, Import, ReleaseError, describe
from verifier.split import SplitResult, split, split_by_ids
from verifier.task import Split

RECIPES: Final = Path(__file__).parent / "recipes"

InData = Annotated[str, Field(pattern=r"^[^/\\.][^\\]*$", description="a path below the data folder")]


class Source(BaseModel):
    """One import."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    importer: Literal["lab-bench", "biomni", "jsonl"]
    path: InData
    drop: tuple[Kind, ...] = ()
    """Kinds of problems whose rows are left out, and listed in the release."""
    licence: str = ""
    """SPDX; of JSON lines, which state none themselves."""


class LakeRecipe(BaseModel):
    """Files of the data lake."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: InData
    files: dict[str, str] = Field(min_length=1)
    """Public one-line description by path inside the folder; only these files are taken."""


class Recipe(BaseModel):
    """A recipe file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    licence: str = ""
    """SPDX expression; the sources' licences joined by AND if empty."""
    notes: tuple[str, ...] = ()
    source: tuple[Source, ...] = Field(min_length=1)
    ids: InData | None = None
    """An id list; tasks that it does not name are left out."""
    sizes: dict[Split, int | float] | None = None
    """Instead of an id list: counts, or shares, of an own split."""
    seed: str = "rinr"
    break_groups: bool = False
    lake: LakeRecipe | None = None

    @model_validator(mode="after")
    def _one_split(self) -> "Recipe":
        if (self.ids is None) == (self.sizes is None):
            raise ValueError("a recipe has either ids or sizes")
        return self


@dataclass(frozen=True)
class Built:
    """A frozen release and what happened on the way."""

    header: Header
    imports: tuple[Import, ...]
    split: SplitResult


def find_recipe(name_or_path: str) -> Recipe:
    """The recipe of that name, else the one in that file. Raises ReleaseError naming file and field."""
    known = {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}
    path = known.get(name_or_path, Path(name_or_path))
    if not path.is_file():
        raise ReleaseError(f"no recipe {name_or_path!r}: name a TOML file, or one of: {', '.join(known)}")
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{path}: no TOML ({error})") from None
    except ValidationError as error:
        raise ReleaseError(f"{path}: {describe(error)}") from None


def build(recipe: Recipe, data: Path, destination: Path, store: Store | None = None) -> Built:
    """Make the release folder `destination`, which must not exist, from the files below `data`.

    `store` keeps the lake's files once for all releases; without one they are this release's alone. Raises
    ReleaseError, one line naming the file and the row or entry; then nothing is left behind.
    """
    if destination.exists():
        raise ReleaseError(f"{destination} exists already: remove it or choose another folder")
    if not data.is_dir():
        raise ReleaseError(f"{data}: no such folder; the recipe's files are expected there")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{destination.name}-draft-", dir=destination.parent) as folder:
        draft = Draft.create(Path(folder) / "draft")
        imports = tuple(draft.add(_opened(source, data), source.drop) for source in recipe.source)
        dealt = _split(recipe, draft, data)
        if recipe.lake is not None:
            lake = recipe.lake
            add_lake(draft, data / lake.folder, store or Store(Path(folder) / "store"), list(lake.files))
            draft.declare(sources=(), notes=(), lake_descriptions=lake.files)
        declared = Declared(name=recipe.name, licence=recipe.licence, notes=recipe.notes)
        header = freeze_draft(draft, destination, declared)
    return Built(header, imports, dealt)


def _opened(source: Source, data: Path) -> Importer:
    path = data / source.path
    if not path.exists():
        raise ReleaseError(f"{path}: no such file or folder; the recipe's files are expected below {data}")
    openers: dict[str, Callable[[], Importer]] = {
        "lab-bench": lambda: LabBench(path),
        "biomni": lambda: Biomni(path),
        "jsonl": lambda: JsonLines(path, licence=source.licence),
    }
    return openers[source.importer]()


def _split(recipe: Recipe, draft: Draft, data: Path) -> SplitResult:
    if recipe.ids is not None:
        return split_by_ids(draft, read_ids(data / recipe.ids))
    return split(draft, recipe.sizes or {}, seed=recipe.seed, break_groups=recipe.break_groups)
