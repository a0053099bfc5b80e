"""Importer for the GWAS tasks of Biomni: the causal gene of a locus and the variant to put first (DATA-01).

Reads the benchmark folder (`gwas_causal_gene/*_step2.for_llm.tsv` with `*.labels`,
`gwas_variant_prioritization/*_questions.csv`) or the Parquet file of Biomni-Eval1, of which it takes the
four GWAS tasks. Must not know splits: Eval1's own `split` is not one of train, val and test.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Final

from verifier.importers.base import Problem, Row, compose_prompt
from verifier.importers.kinship import Kinship
from verifier.importers.parquet import parquet_rows
from verifier.importers.texts import table_rows
from verifier.layout import ReleaseError
from verifier.task import AnswerFormat, Question

FAMILY: Final = "GWAS"
_LICENCE: Final = "Apache-2.0"
SOURCES: Final = ("gwas_catalog", "opentargets", "pharmaprojects")
"""Where causal genes come from, as file names and Eval1's task names spell it."""
VARIANT: Final = "variant_prioritization"

_GENE_FOLDER, _VARIANT_FOLDER = "gwas_causal_gene", "gwas_variant_prioritization"
_QUESTIONS, _LABELS = "_step2.for_llm.tsv", "_step2.labels"
_QUESTION_COLUMNS: Final = ("row_number", "description", "symbol_gene_string", "ensembl_gene_string")
_LABEL_COLUMNS: Final = ("symbol", "gene")
_VARIANT_COLUMNS: Final = ("task", "prompt", "answer")
_EVAL1_NEEDED: Final = ("task_name", "task_instance_id", "prompt", "answer")
_EVAL1_COLUMNS: Final = (*_EVAL1_NEEDED, "split", "instance_id")
_VARIANT_TASK: Final = "gwas_variant_prioritization"
_GENE_TASKS: Final = {f"gwas_causal_gene_{source}": f"causal_gene_{source}" for source in SOURCES}
_TRAIT: Final = re.compile(r"GWAS phenotype:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_GENES: Final = re.compile(r"Genes in locus:[ \t]*(\{.*\})[ \t]*$", re.MULTILINE)
_VARIANTS: Final = re.compile(r"Variants:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_RSID: Final = re.compile(r"rs[1-9]\d*")
_GENE_PROMPT: Final = """\
A genome-wide association study found a locus for this trait: {trait}
Which one of the genes in the locus is most likely the causal one?
Genes in the locus: {genes}"""


@dataclass(frozen=True)
class _Stated:
    """A row of any of the files."""

    id: str
    where: str
    subtopic: str
    prompt: str
    trait: str
    candidates: tuple[str, ...]
    answer: str


class Biomni:
    """A Biomni benchmark folder, or the Parquet file of Biomni-Eval1, opened for import."""

    name: ClassVar = "biomni"
    version: ClassVar = 1

    def __init__(self, path: Path) -> None:
        """Raises ReleaseError when neither layout is there, or a file is not known or lacks its labels."""
        if not path.exists():
            raise ReleaseError(f"{path}: no such file or folder")
        self.licence = _LICENCE
        self.no_training = False
        if path.is_file() or any(path.glob("*.parquet")):
            self.root = path.parent if path.is_file() else path
            self._readers = _eval1_readers(path)
            self.origin = "Biomni-Eval1 (https://huggingface.co/datasets/biomni/Eval1)"
            self.notes: Sequence[str] = ("Biomni-Eval1: only its four GWAS tasks are imported.",)
        else:
            self.root = path
            self._readers = _folder_readers(path)
            self.origin = "Biomni benchmark files (https://github.com/snap-stanford/Biomni)"
            self.notes = ("Biomni: the prompts of causal genes are our own words; the source has none.",)

    def files(self) -> Sequence[Path]:
        return sorted(path for paths in self._readers for path in paths)

    def rows(self) -> Iterator[Row | Problem]:
        """Every row of the GWAS tasks. Files are read twice: loci overlap between rows far apart."""
        kinship = Kinship()
        for row in self._stated():
            if isinstance(row, _Stated):
                kinship.join(_material(row))
        found = False
        for row in self._stated():
            found = True
            yield _row(row, kinship) if isinstance(row, _Stated) else row
        if not found:
            raise ReleaseError(f"{self.root}: no row of a GWAS task; known are {', '.join(_known_tasks())}")

    def _stated(self) -> Iterator[_Stated | Problem]:
        for paths, read in self._readers.items():
            yield from read(*(path.relative_to(self.root).as_posix() for path in paths))


_Readers = Mapping[tuple[Path, ...], Callable[..., Iterator[_Stated | Problem]]]


def _folder_readers(root: Path) -> _Readers:
    """How to read the files of a benchmark folder, by the files; names inside the root are given to it."""
    readers: dict[tuple[Path, ...], Callable[..., Iterator[_Stated | Problem]]] = {}
    for path in sorted(_inside(root, _GENE_FOLDER).glob(f"*{_QUESTIONS}")):
        source = path.name.removesuffix(_QUESTIONS)
        if source not in SOURCES:
            raise ReleaseError(f"{path}: {source!r} is no known source; known are {', '.join(SOURCES)}")
        labels = path.with_name(source + _LABELS)
        if not labels.is_file():
            raise ReleaseError(f"{labels}: no such file; {path.name} needs its labels beside it")
        readers[path, labels] = _gene_reader(path, labels, source)
    for path in sorted(_inside(root, _VARIANT_FOLDER).glob("*_questions.csv")):
        readers[path,] = _variant_reader(path)
    if not readers:
        wanted = f"{_GENE_FOLDER}/*{_QUESTIONS} nor {_VARIANT_FOLDER}/*_questions.csv"
        raise ReleaseError(f"{root}: neither {wanted} is there")
    return readers


def _inside(root: Path, name: str) -> Path:
    return root if root.name == name else root / name


def _gene_reader(path: Path, labels: Path, source: str) -> Callable[[str, str], Iterator[_Stated | Problem]]:
    def read(name: str, labels_name: str) -> Iterator[_Stated | Problem]:
        questions = table_rows(path, name, _QUESTION_COLUMNS, "\t")
        answers = table_rows(labels, labels_name, _LABEL_COLUMNS, "\t")
        for number, (one, other) in enumerate(zip_longest(questions, answers), 1):
            if one is None or other is None:
                longer, shorter = (name, labels_name) if other is None else (labels_name, name)
                raise ReleaseError(f"{longer} row {number}: {shorter} has no row {number} to go with it")
            where, fields = one
            label = other[1]
            if isinstance(fields, Problem):
                yield fields
            elif isinstance(label, Problem):
                yield label
            elif fields["row_number"] != str(number):
                # Labels go with questions by position alone.
                why = f"row_number is {fields['row_number']!r}; rows must be in order, as their labels are"
                yield Problem("malformed-row", where, why)
            else:
                genes = _genes(fields["symbol_gene_string"])
                trait = fields["description"].strip()
                prompt = _GENE_PROMPT.format(trait=trait, genes=", ".join(genes))
                subtopic, task_id = f"causal_gene_{source}", f"{source}:{number}"
                yield _Stated(task_id, where, subtopic, prompt, trait, genes, label["symbol"].strip())

    return read


def _variant_reader(path: Path) -> Callable[[str], Iterator[_Stated | Problem]]:
    def read(name: str) -> Iterator[_Stated | Problem]:
        rows = table_rows(path, name, _VARIANT_COLUMNS, ",")
        for number, (where, fields) in enumerate(rows, 1):
            if isinstance(fields, Problem):
                yield fields
            elif fields["task"] != _VARIANT_TASK:
                why = f"task is {fields['task']!r}; known is {_VARIANT_TASK}"
                yield Problem("malformed-row", where, why)
            else:
                yield _from_prompt(f"variant:{number}", where, VARIANT, fields["prompt"], fields["answer"])

    return read


def _eval1_readers(path: Path) -> _Readers:
    return {(file,): _eval1_reader(file) for file in ([path] if path.is_file() else path.glob("*.parquet"))}


def _eval1_reader(path: Path) -> Callable[[str], Iterator[_Stated | Problem]]:
    def read(name: str) -> Iterator[_Stated | Problem]:
        for where, fields in parquet_rows(path, name, _EVAL1_COLUMNS, _EVAL1_NEEDED):
            task, instance = fields["task_name"], fields["task_instance_id"]
            prompt, answer = fields["prompt"], fields["answer"]
            if not isinstance(task, str) or instance is None:
                yield Problem("malformed-row", where, "task_name or task_instance_id is empty")
            elif task not in _known_tasks():
                if task.startswith("gwas"):
                    why = f"task_name is {task!r}; known are {', '.join(_known_tasks())}"
                    yield Problem("malformed-row", where, why)
            elif not isinstance(prompt, str) or not isinstance(answer, str):
                yield Problem("malformed-row", where, "prompt or answer is no text")
            else:
                subtopic = _GENE_TASKS.get(task, VARIANT)
                yield _from_prompt(f"{task}:{instance}", where, subtopic, prompt, answer)

    return read


def _known_tasks() -> tuple[str, ...]:
    return (*_GENE_TASKS, _VARIANT_TASK)


def _from_prompt(task_id: str, where: str, subtopic: str, prompt: str, answer: str) -> _Stated | Problem:
    """A row whose source has a prompt: trait and candidates are read out of it."""
    trait = _TRAIT.search(prompt)
    listed = (_VARIANTS if subtopic == VARIANT else _GENES).search(prompt)
    if trait is None or listed is None:
        what = "the line 'GWAS phenotype:'" if trait is None else "a list of candidates"
        return Problem("malformed-row", where, f"the prompt has not {what}")
    names = _genes(listed[1])
    return _Stated(task_id, where, subtopic, prompt.strip(), trait[1], names, answer.strip().strip("{}"))


def _genes(listed: str) -> tuple[str, ...]:
    """The candidates of a list such as `{A},{B}` or `rs1, rs2`, each once."""
    names = (name.strip().strip("{}").strip() for name in listed.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _row(row: _Stated, kinship: Kinship) -> Row | Problem:
    is_variant = row.subtopic == VARIANT
    if not row.trait or not row.answer:
        return Problem("malformed-row", row.where, f"the {'label' if row.trait else 'trait'} is empty")
    if is_variant and not all(_RSID.fullmatch(name) for name in (*row.candidates, row.answer)):
        return Problem("malformed-row", row.where, "a candidate or the label is no rsID (rs and a number)")
    # Genes are compared without regard to case and rsIDs exactly, as they are graded.
    fold = str if is_variant else str.casefold
    if fold(row.answer) not in {fold(name) for name in row.candidates}:
        why = f"the label is none of the {len(row.candidates)} candidates"
        return Problem("label-outside-candidates", row.where, why)
    form = AnswerFormat.RSID if is_variant else AnswerFormat.SYMBOL
    question = Question(
        id=row.id,
        family=FAMILY,
        subtopic=row.subtopic,
        material_group=f"gwas-{kinship.name(_material(row)[0])}",
        prompt=compose_prompt(row.prompt, (), form),
        answer_format=form,
        source=row.where,
        licence=_LICENCE,
    )
    return Row(question, {"answer": row.answer}, row.where)


def _material(row: _Stated) -> tuple[str, ...]:
    """Keys of what a row was made from. Loci that share a gene overlap, and so mostly have one answer.

    The candidates of a variant question are drawn from one pool for all traits: its material is the trait.
    """
    if row.subtopic == VARIANT:
        return (f"trait {row.trait.casefold()}",)
    return tuple(f"gene {name.casefold()}" for name in row.candidates) or (row.id,)
