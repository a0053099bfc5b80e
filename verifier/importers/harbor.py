"""Tasks in the Harbor format (task.toml, instruction.md, environment/, tests/, solution/), one folder each.

A task becomes a question of the format `files`, whose verdict its own tests/test.sh gives; several steps
become steps, several rewards their mean, or weighted criteria where `[metadata.rubric]` names weights by key.
Tests and solution are private files. What a task needs that no sandbox here gives (a network, an image of its
own, servers) is written into the task: it imports, and a run on it is refused by name. A task that
`verifier/harbor_export.py` wrote becomes the question that it was. Versions 1.0 to 1.4 of task.toml are read.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast, get_args

from pydantic import ValidationError

from catalog.digest import digest_file
from verifier.importers.base import Problem, Row
from verifier.importers.dockerfile import read_dockerfile
from verifier.importers.harbor_toml import HarborStep, HarborToml, Verifier
from verifier.layout import ReleaseError, describe
from verifier.surroundings import Step, Surroundings
from verifier.task import AnswerFormat, Question, Split

Need = Literal["gpu", "image", "mcp", "network", "services", "user", "variables", "windows"]
"""What a task may require; `--assume` says that a task does not need it in fact."""
ANSWER_LINE: Final = "\n\nWrite your answer, tags included, to /app/answer.txt."
"""What an export adds to the prompt, for an agent has to know where the answer goes."""
EXPORTED: Final = "rinr"
"""The table of `[metadata]` that marks a task of our own export."""
_CANARY: Final = re.compile(r"\b\S*canary\S* GUID \S+", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$\{")
_MOST_TEXT: Final = 1 << 20
_LEFT_OUT: Final = frozenset({"__pycache__", ".git", ".DS_Store"})


class Harbor:
    """A folder with a task, or with tasks below it, opened for import."""

    name: ClassVar = "harbor"
    version: ClassVar = 1

    def __init__(
        self,
        folder: Path,
        *,
        licence: str,
        origin: str = "",
        no_training: bool = False,
        assume: Collection[str] = (),
    ) -> None:
        """`licence` of the tasks that name none, as SPDX. Raises ReleaseError when no task is there."""
        if unknown := sorted(set(assume) - set(get_args(Need))):
            raise ReleaseError(f"--assume {unknown[0]}: known are {', '.join(get_args(Need))}")
        self._tasks = _task_folders(folder)
        if not self._tasks:
            raise ReleaseError(
                f"{folder}: no task.toml in it; name the folder of a Harbor task, or of several"
            )
        self._assume = frozenset(assume)
        self.root = folder
        self.licence = licence
        self.origin = origin or f"harbor {folder.name}"
        self.notes: Sequence[str] = (
            (f"Harbor tasks taken not to need: {', '.join(sorted(assume))}",) if assume else ()
        )
        self.no_training = no_training

    def files(self) -> Sequence[Path]:
        """Every file of every task: each is part of what the task is."""
        return sorted(path for task in self._tasks for path in _files_below(task))

    def rows(self) -> Iterator[Row | Problem]:
        for folder in self._tasks:
            inside = folder.relative_to(self.root).as_posix()
            where = f"{folder.name if inside == '.' else inside}/task.toml"
            try:
                yield _Reader(folder, inside, where, self._assume).row()
            except (ValidationError, tomllib.TOMLDecodeError) as error:
                why = describe(error) if isinstance(error, ValidationError) else f"not TOML: {error}"
                yield Problem("malformed-row", where, why)
            except UnicodeDecodeError as error:
                yield Problem("malformed-row", where, f"not UTF-8 ({error.reason})")
            except _Unsupported as error:
                yield Problem("unsupported-task", where, str(error))
            except (ValueError, OSError) as error:
                yield Problem("malformed-row", where, str(error))


class _Unsupported(Exception):
    """A task that means something which no release can hold."""


class _Reader:
    """Reads one task folder."""

    def __init__(self, folder: Path, inside: str, where: str, assume: frozenset[str]) -> None:
        self._folder = folder
        self._where = where
        self._assume = assume
        self._id = folder.name if inside == "." else inside.replace("/", "__")
        self._toml = HarborToml.model_validate(tomllib.loads((folder / "task.toml").read_text("utf-8")))

    def row(self) -> Row:
        exported = self._toml.metadata.get(EXPORTED)
        if isinstance(exported, dict):
            return self._exported(cast("dict[str, Any]", exported))
        steps = self._toml.steps or ()
        prompts = [self._text(self._home(step) / "instruction.md") for step in steps]
        prompt = prompts[0] if steps else self._text(self._folder / "instruction.md")
        assets, requires = self._environment()
        for step in steps:
            assets |= self._below(self._home(step) / "workdir", f"steps/{step.name}")
        private = self._private()
        surroundings = Surroundings(
            variables=self._variables(requires),
            steps=tuple(Step(name=step.name, prompt=text) for step, text in zip(steps, prompts, strict=True))
            if len(steps) > 1
            else (),
            requires=tuple(sorted(requires - self._assume)),
        )
        question = Question(
            **self._public(),
            prompt=prompt,
            answer_format=AnswerFormat.FILES,
            files=tuple(sorted(assets)),
            checked_by=("script",),
            surroundings=surroundings,
        )
        reference = {"rubric": self._rubric(), "script": self._script(private)}
        return Row(question, reference, self._where, self._split(), dict(assets), dict(private))

    def _public(self) -> dict[str, Any]:
        """What a question says of itself besides its content."""
        said = self._toml.metadata
        family = _word(said, "family", "category") or "harbor"
        return {
            "id": self._id,
            "family": family,
            "subtopic": _word(said, "subtopic", "subcategory") or "all",
            "material_group": _word(said, "material_group") or self._id,
            "source": _word(said, "source_id") or self._named() or self._where,
            "licence": _word(said, "licence", "license"),
            "canary": _word(said, "canary") or self._found_canary(),
        }

    def _named(self) -> str:
        return self._toml.task.name if self._toml.task is not None else ""

    def _split(self) -> Split | None:
        said = _word(self._toml.metadata, "split")
        return cast("Split", said) if said in get_args(Split) else None

    def _home(self, step: HarborStep) -> Path:
        home = self._folder / "steps" / step.name
        if "/" in step.name or step.name.startswith(".") or not home.is_dir():
            raise ValueError(f"step {step.name!r} has no folder of that name below steps/")
        return home

    def _text(self, path: Path) -> str:
        if not path.is_file():
            raise ValueError(f"{path.relative_to(self._folder)} is missing")
        if path.stat().st_size > _MOST_TEXT:
            raise ValueError(f"{path.relative_to(self._folder)} is longer than {_MOST_TEXT >> 20} MiB")
        return path.read_text("utf-8").strip()

    def _below(self, folder: Path, prefix: str) -> dict[str, Path]:
        return {f"{prefix}/{path.relative_to(folder).as_posix()}": path for path in _files_below(folder)}

    def _environment(self) -> tuple[dict[str, Path], set[str]]:
        """The files that the agent finds in its working folder, and what no sandbox here has."""
        asked, folder = self._toml.environment, self._folder / "environment"
        requires = self._toml.requires()
        if (folder / "docker-compose.yaml").exists() or (folder / "docker-compose.yml").exists():
            requires.add("services")
        if not (folder / "Dockerfile").is_file():
            return {}, requires | ({"image"} if asked.docker_image else set[str]())
        image = read_dockerfile((folder / "Dockerfile").read_text("utf-8"), folder, asked.workdir)
        if image.not_understood:
            requires.add("image")
        return {f"work/{name}": path for name, path in image.files.items()}, requires

    def _variables(self, requires: set[str]) -> dict[str, str]:
        found = self._toml.environment.env
        if any(_VARIABLE.search(value) for value in found.values()):
            requires.add("variables")
        return {name: value for name, value in found.items() if not _VARIABLE.search(value)}

    def _private(self) -> dict[str, Path]:
        """Tests and solutions, as they lie."""
        found: dict[str, Path] = {}
        for name in ("tests", "solution"):
            found |= self._below(self._folder / name, name)
        for step in self._toml.steps or ():
            for name in ("tests", "solution"):
                found |= self._below(self._home(step) / name, f"steps/{step.name}/{name}")
        return found

    def _rubric(self) -> dict[str, Any]:
        """One criterion for all rewards, or one for each key that the task gives a weight."""
        weights = self._toml.metadata.get("rubric")
        stated = cast("dict[str, Any]", weights) if isinstance(weights, dict) else {"": 1.0}
        return {
            "criteria": [
                {
                    "name": key or "script",
                    "description": f"the script's reward {key}" if key else "what the task's script rewards",
                    "weight": weight,
                    "check": {"kind": "script", **({"key": key} if key else {})},
                }
                for key, weight in stated.items()
            ]
        }

    def _script(self, private: Mapping[str, Path]) -> dict[str, Any]:
        toml = self._toml
        runs = [(step.name, step.verifier, step.gate()) for step in toml.steps or ()]
        steps = [
            self._step(private, verifier, name=name if len(runs) > 1 else "", minimum=minimum, folder=name)
            for name, verifier, minimum in runs or [("", toml.verifier, dict[str, float]())]
        ]
        memory = toml.environment.memory_mb
        return {
            "steps": steps,
            "files": {name: digest_file(path) for name, path in sorted(private.items())},
            "strategy": toml.multi_step_reward_strategy or "mean",
            "memory_bytes": None if memory is None else memory << 20,
        }

    def _step(
        self,
        private: Mapping[str, Path],
        verifier: Verifier,
        *,
        name: str,
        minimum: Mapping[str, float],
        folder: str,
    ) -> dict[str, Any]:
        own = f"steps/{folder}/tests" if folder else "tests"
        tests = list(dict.fromkeys(["tests", own]))
        if not any(f"{place}/test.sh" in private for place in tests):
            raise _Unsupported(f"no test.sh in {own}: nothing says what is right")
        environment = {**self._toml.verifier.env, **verifier.env}
        if any(_VARIABLE.search(value) for value in environment.values()):
            raise _Unsupported("its verifier takes variables of the host (${...}), which no check is given")
        return {
            "name": name,
            "tests": tests,
            "seconds": verifier.timeout_sec,
            "environment": environment,
            "minimum": dict(minimum),
        }

    def _found_canary(self) -> str:
        """The first line of the task's files that says to be a canary."""
        for path in _files_below(self._folder):
            if path.stat().st_size <= _MOST_TEXT and (
                found := _CANARY.search(path.read_bytes().decode("utf-8", "replace"))
            ):
                return found[0]
        return ""

    def _exported(self, said: Mapping[str, Any]) -> Row:
        """The question that our own export made a task of."""
        answer = json.loads((self._folder / "tests/reference.json").read_bytes())
        prompt = (self._folder / "instruction.md").read_text("utf-8").removesuffix("\n")
        if not prompt.endswith(ANSWER_LINE):
            raise ValueError("instruction.md does not end with the line that an export adds")
        assets = self._below(self._folder / "environment/assets", "assets")
        public = self._public()
        public |= {name: str(said.get(name, "")) for name in ("id", "source", "licence")}
        question = Question(
            **public,
            prompt=prompt.removesuffix(ANSWER_LINE),
            options=tuple(said.get("options", ())),
            answer_format=AnswerFormat(str(said.get("format"))),
            files=tuple(sorted(name.removeprefix("assets/") for name in assets)),
        )
        reference = {
            name: answer[name] for name in ("answer", "absolute", "relative", "unit") if name in answer
        }
        files = {name.removeprefix("assets/"): path for name, path in assets.items()}
        return Row(question, reference, self._where, self._split(), dict(files))


def _task_folders(folder: Path) -> list[Path]:
    """Folders with a task.toml, sorted; one inside of another belongs to that task."""
    found: list[Path] = []
    for path in sorted(path.parent for path in folder.rglob("task.toml")):
        if not any(outer == path or outer in path.parents for outer in found):
            found.append(path)
    return found


def _word(said: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that holds text."""
    return next((str(said[name]) for name in names if isinstance(said.get(name), str) and said[name]), "")


def _files_below(folder: Path) -> list[Path]:
    """Plain files, sorted. ReleaseError for a symbolic link: what it names is no part of the task."""
    found: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if _LEFT_OUT & set(path.relative_to(folder).parts):
            continue
        if path.is_symlink():
            raise ReleaseError(f"{path}: a symbolic link; copy the file instead")
        if path.is_file():
            found.append(path)
    return found
