"""Importer for LAB-Bench: its families DbQA, LitQA2 and ProtocolQA, as the public repository or as the
Parquet files of its data set page (DATA-01).

Options come in an order that only their texts decide, with the option to abstain that the benchmark's own
protocol adds to every question. The key passage and the sources of LitQA2 are withheld; a protocol is public.
Must not know splits: the `*-splits.json` beside the files only say which rows upstream publishes.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verifier.importers.base import Problem, Row, compose_prompt, letter_options
from verifier.importers.kinship import Kinship, passages
from verifier.importers.parquet import parquet_rows
from verifier.importers.texts import json_rows
from verifier.layout import ReleaseError, describe
from verifier.task import AnswerFormat, Question

ABSTAIN: Final = "Insufficient information to answer the question"
"""The option that upstream's harness adds to every question."""

SUBTOPICS: Final = {
    "dga": "disease_gene",
    "gene_location": "gene_location",
    "mirna_targets": "mirna_targets",
    "mouse_tumor_gene_sets": "mouse_tumor_gene_sets",
    "oncogenic_signatures": "oncogenic_signatures",
    "tfbs_gtrd": "tfbs_gtrd",
    "variant_from_sequence": "variant_from_sequence",
    "variant_multi_sequence": "variant_multi_sequence",
    "vax_response": "vax_response",
    "viral_ppi": "viral_ppi",
    "litqa": "literature_reading",
    "protocolqa": "protocol_troubleshooting",
}
"""Subtopic by a file's or subtask's stem, without `_task`, version and `-public`."""

_FAMILIES: Final = ("DbQA", "LitQA2", "ProtocolQA")
_OTHER_FAMILIES: Final = ("CloningScenarios", "FigQA", "SeqQA", "SuppQA", "TableQA")
_STEM: Final = re.compile(r"(_task)?(-v\d+)?(-public)?$")
_SEQUENCE: Final = re.compile(r"<sequence>(.*?)</sequence>", re.DOTALL)
_PASSAGE_WORDS: Final = 20
_PASSAGE_RESIDUES: Final = 20
_UPSTREAM: Final = "https://github.com/Future-House/LAB-Bench"


class _Entry(BaseModel):
    """A row of any of the files."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str = Field(min_length=1)
    question: str = Field(min_length=1)
    ideal: str = Field(min_length=1)
    distractors: tuple[str, ...] = Field(min_length=1)
    canary: str | None = None
    tag: str | None = None
    version: str | None = None
    subtask: str | None = None
    protocol: str | None = None
    source: str | None = None
    sources: tuple[str, ...] | None = None
    key_passage: str | None = Field(default=None, alias="key-passage")
    is_opensource: bool | None = None


_KNOWN: Final = tuple(field.alias or name for name, field in _Entry.model_fields.items())
_NEEDED: Final = ("id", "question", "ideal", "distractors")


class LabBench:
    """A folder of LAB-Bench opened for import: the repository's, the data set's, or one family's alone."""

    name: ClassVar = "lab-bench"
    version: ClassVar = 1

    def __init__(self, root: Path, *, abstain: bool = True) -> None:
        """`abstain=False` leaves the option to abstain out, which upstream never does.

        Raises ReleaseError when no family is there, or one is there as JSON lines and as Parquet.
        """
        if not root.is_dir():
            raise ReleaseError(f"{root}: no such folder")
        self.root = root
        self.licence = "CC-BY-SA-4.0"
        self.origin = f"LAB-Bench ({_UPSTREAM})"
        self.no_training = True
        self._abstain = abstain
        single = root.name in _FAMILIES
        self._folders = {
            family: root if single else root / family
            for family in _FAMILIES
            if (root.name == family if single else (root / family).is_dir())
        }
        if not self._folders:
            raise ReleaseError(f"{root}: none of the folders {', '.join(_FAMILIES)} is there")
        self._files = {family: _family_files(folder) for family, folder in self._folders.items()}
        self.notes: Sequence[str] = self._notes()

    def files(self) -> Sequence[Path]:
        return sorted(path for paths in self._files.values() for path in paths)

    def rows(self) -> Iterator[Row | Problem]:
        """Every row, family by family. Files are read twice: material is shared between rows far apart."""
        for family, paths in self._files.items():
            kinship = Kinship()
            for _, entry, subtopic in self._entries(paths):
                if not isinstance(entry, Problem):
                    kinship.join(_material(entry, subtopic))
            for where, entry, subtopic in self._entries(paths):
                if isinstance(entry, Problem):
                    yield entry
                else:
                    kin = f"{family.lower()}-{kinship.name(_material(entry, subtopic)[0])}"
                    yield self._row(entry, where, (family, subtopic, kin))

    def _entries(self, paths: Sequence[Path]) -> Iterator[tuple[str, _Entry | Problem, str]]:
        for path in paths:
            name = path.relative_to(self.root).as_posix()
            is_parquet = path.suffix == ".parquet"
            read = parquet_rows(path, name, _KNOWN, _NEEDED) if is_parquet else json_rows(path, name, _KNOWN)
            stated = None if is_parquet else _subtopic(path.stem, name)
            for where, fields in read:
                entry = fields if isinstance(fields, Problem) else _checked(fields, where)
                if isinstance(entry, Problem):
                    yield where, entry, ""
                else:
                    yield where, entry, stated or self._stated_by(entry, path, where)

    def _stated_by(self, entry: _Entry, path: Path, where: str) -> str:
        """A Parquet file holds all subtasks of a family; DbQA's rows name theirs."""
        if path.parent == self._folders.get("LitQA2"):
            return SUBTOPICS["litqa"]
        if path.parent == self._folders.get("ProtocolQA"):
            return SUBTOPICS["protocolqa"]
        if not entry.subtask:
            raise ReleaseError(f"{where}: no subtask; a row of DbQA needs one to have a subtopic")
        return _subtopic(entry.subtask, where)

    def _row(self, entry: _Entry, where: str, place: tuple[str, str, str]) -> Row | Problem:
        family, subtopic, kin = place
        if not entry.canary:
            return Problem("missing-canary", where, f"no canary, which every row carries (id {entry.id})")
        if family == "ProtocolQA" and not entry.protocol:
            return Problem("malformed-row", where, "a question of ProtocolQA without its protocol")
        wrong = (*entry.distractors, ABSTAIN) if self._abstain else entry.distractors
        try:
            options, letter = letter_options(entry.ideal, wrong, entry.id)
        except ValueError as error:
            kind = "duplicate-options" if "same text" in str(error) else "malformed-row"
            return Problem(kind, where, f"{error} (id {entry.id})")
        protocol = f"Protocol:\n{entry.protocol.strip()}\n\n" if entry.protocol else ""
        question = Question(
            id=entry.id,
            family=family,
            subtopic=subtopic,
            material_group=kin,
            prompt=compose_prompt(protocol + entry.question, options, AnswerFormat.LETTER),
            options=options,
            answer_format=AnswerFormat.LETTER,
            source=where,
            licence=self.licence,
            canary=entry.canary,
        )
        return Row(question, {"answer": letter} | _withheld(entry), where)

    def _notes(self) -> tuple[str, ...]:
        notes = ["LAB-Bench: options are in the order of a digest of their texts."]
        if self._abstain:
            notes.append(f"LAB-Bench: every question has the option {ABSTAIN!r}, as in its own protocol.")
        else:
            notes.append("LAB-Bench: the option to abstain, which its own protocol adds, was left out.")
        if any(folder.glob("*-openanswer.jsonl") for folder in self._folders.values()):
            notes.append("ProtocolQA: the open-answer file asks some questions again and is not imported.")
        other = [name for name in _OTHER_FAMILIES if (self.root / name).is_dir()]
        if other:
            notes.append(f"LAB-Bench: {', '.join(other)} are there and are not imported.")
        return tuple(notes)


def _family_files(folder: Path) -> tuple[Path, ...]:
    """The data files of one family, sorted."""
    lines, tables = sorted(folder.glob("*.jsonl")), sorted(folder.glob("*.parquet"))
    lines = [path for path in lines if not path.stem.endswith("-openanswer")]
    if lines and tables:
        raise ReleaseError(f"{folder} holds {lines[0].name} and {tables[0].name}: keep JSON lines or Parquet")
    if not lines and not tables:
        raise ReleaseError(f"{folder}: no file *-public.jsonl or *.parquet")
    return tuple(lines or tables)


def _subtopic(stated: str, where: str) -> str:
    stem = _STEM.sub("", stated.casefold())
    stem = "litqa" if stem in ("litqa", "litqa2") or stated.casefold().startswith("litqa-v") else stem
    if stem not in SUBTOPICS:
        raise ReleaseError(f"{where}: {stated!r} is no known subtask; known are {', '.join(SUBTOPICS)}")
    return SUBTOPICS[stem]


def _checked(fields: dict[str, Any], where: str) -> _Entry | Problem:
    try:
        return _Entry.model_validate(fields)
    except ValidationError as error:
        return Problem("malformed-row", where, describe(error))


def _withheld(entry: _Entry) -> dict[str, Any]:
    """What would give the answer away and the benchmark does not show."""
    fields = {
        "key-passage": entry.key_passage,
        "source": entry.source,
        "sources": entry.sources and list(entry.sources),
    }
    kept = {name: value for name, value in fields.items() if value}
    return {"withheld": kept} if kept else {}


def _material(entry: _Entry, subtopic: str) -> tuple[str, ...]:
    """Keys of what a row was made from: rows with a common key belong to one material group.

    Protocols and protein sequences are the same material when they share a long passage: each question of
    ProtocolQA changes a step or two of one of a few protocols, and DbQA asks for variants of one protein.
    """
    if entry.protocol:
        return tuple(passages(re.findall(r"\w+", entry.protocol.casefold()), _PASSAGE_WORDS))
    if entry.sources:
        return tuple(f"source {_article(source)}" for source in entry.sources)
    if subtopic.startswith("variant_"):
        sequences = _SEQUENCE.findall(entry.question) or (entry.ideal, *entry.distractors)
        return tuple(
            key for sequence in sequences for key in passages("".join(sequence.split()), _PASSAGE_RESIDUES)
        )
    return (f"{subtopic} {' '.join(entry.question.casefold().split())}",)


def _article(source: str) -> str:
    """A source without the spelling of its address."""
    return re.sub(r"^(https?://)?(dx\.)?(doi\.org/)?", "", source.strip().casefold()).rstrip("/")
