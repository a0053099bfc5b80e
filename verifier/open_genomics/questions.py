"""The questions of `open-genomics`: four families, each answered by one look-up in the lake.

Subjects and right answers are genes or variants of bands that belong to the task's split, and none of them
serves two tasks, so splits share neither material nor answers.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from verifier.answers import LETTERS, answer_form
from verifier.open_genomics.lake import Lake, Located, Measured, shuffled
from verifier.open_genomics.source import Gene
from verifier.task import AnswerFormat, Split, Task

FAMILIES: Final = {
    "gene_location": ["cytoband"],
    "nearest_gene": ["candidates"],
    "variant_gene": ["clinvar"],
    "gene_length": ["base_pairs"],
}
OPTIONS: Final = 4
LENGTH_TOLERANCE: Final = 0.001
"""Share of the length by which an answer may miss: rounding to four digits is right."""


@dataclass(frozen=True)
class Draft:
    """A question before it has a number and a split."""

    family: str
    subject: str
    answers_with: str
    """Symbol of the gene that the answer names or describes; used once."""
    band: str
    question: Callable[[int], tuple[str, tuple[str, ...], dict[str, Any]]]
    """From the turn, which moves the right answer through the choices, to question, options and reference."""
    answer_format: AnswerFormat
    choices: int = 0
    """How many answers the question lists."""


def drafts(lake: Lake) -> dict[str, list[Draft]]:
    """Every possible question by family, in a fixed pseudo-random order."""
    genes, bands = shuffled(lake.genes, _symbol, "genes"), [gene.band for gene in lake.genes]
    made = {
        "gene_location": [_location(gene, bands) for gene in genes],
        "gene_length": [_length(gene) for gene in genes],
        "variant_gene": [_holder(item) for item in lake.variants],
        "nearest_gene": [_nearest(item) for item in lake.distances],
    }
    return {family: shuffled(items, lambda draft: draft.subject, family) for family, items in made.items()}


def split_bands(lake: Lake, shares: dict[Split, int]) -> dict[str, Split]:
    """Give every band whole to one split, `shares` in percent."""
    names = shuffled({gene.band for gene in lake.genes}, str, "bands")
    belongs: dict[str, Split] = {}
    start = 0
    for split, share in shares.items():
        size = len(names) * share // 100
        belongs |= dict.fromkeys(names[start : start + size], split)
        start += size
    return belongs


def assign(
    lake: Lake, counts: dict[Split, dict[str, int]], shares: dict[Split, int]
) -> tuple[list[Task], dict[str, dict[str, Any]]]:
    """Fill the counts of every split and family. ValueError when the lake is too small for them."""
    belongs, available = split_bands(lake, shares), drafts(lake)
    used: set[str] = set()
    numbers: Counter[str] = Counter()
    turns: Counter[tuple[str, str, int]] = Counter()
    tasks: list[Task] = []
    references: dict[str, dict[str, Any]] = {}
    for split, wanted in counts.items():
        for family, count in wanted.items():
            fitting = (draft for draft in available[family] if belongs.get(draft.band) == split)
            for draft in _unused(fitting, used, count):
                numbers[family] += 1
                turns[(split, family, draft.choices)] += 1
                turn = turns[(split, family, draft.choices)] - 1
                task, reference = _finish(draft, split, numbers[family], turn)
                tasks.append(task)
                references[task.id] = reference
    return tasks, references


def _unused(fitting: Iterable[Draft], used: set[str], count: int) -> list[Draft]:
    chosen: list[Draft] = []
    for draft in fitting:
        if len(chosen) == count:
            return chosen
        if not {draft.subject, draft.answers_with} & used:
            used |= {draft.subject, draft.answers_with}
            chosen.append(draft)
    if len(chosen) < count:
        raise ValueError(
            f"only {len(chosen)} of {count} questions can be made: lower the counts of the builder"
        )
    return chosen


def _finish(draft: Draft, split: Split, number: int, turn: int) -> tuple[Task, dict[str, Any]]:
    lines, options, reference = draft.question(turn)
    listed = [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
    prompt = "\n".join([lines, *listed, f"Answer with {answer_form(draft.answer_format)}."])
    task = Task(
        id=f"og-{draft.family.replace('_', '-')}-{number:03d}",
        split=split,
        family=draft.family,
        subtopic=FAMILIES[draft.family][0],
        material_group=draft.band,
        prompt=prompt,
        options=options,
        answer_format=draft.answer_format,
    )
    return task, reference


def _location(gene: Gene, bands: list[str]) -> Draft:
    def question(turn: int) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        # Wrong options are bands of other genes, as frequent as in the table and as long as the right one
        # where there are enough, so their look tells nothing.
        drawn = [bands[i] for i in shuffled(range(len(bands)), str, f"options {gene.symbol}")]
        wrong = [band for band in dict.fromkeys(drawn) if band != gene.band]
        wrong = sorted(wrong, key=lambda band: len(band) != len(gene.band))[: OPTIONS - 1]
        at = turn % OPTIONS
        options = (*wrong[:at], gene.band, *wrong[at:])
        return f'At which band is gene "{gene.symbol}"?', options, {"answer": LETTERS[at]}

    return Draft("gene_location", gene.symbol, gene.symbol, gene.band, question, AnswerFormat.LETTER, OPTIONS)


def _length(gene: Gene) -> Draft:
    def question(_: int) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        reference = {"answer": str(gene.length), "relative": LENGTH_TOLERANCE, "unit": "bp"}
        return f'How long in base pairs is gene "{gene.symbol}"?', (), reference

    return Draft("gene_length", gene.symbol, gene.symbol, gene.band, question, AnswerFormat.NUMBER)


def _holder(item: Located) -> Draft:
    def question(_: int) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        return f'In which gene does variant "{item.variant.rsid}" lie?', (), {"answer": item.gene.symbol}

    variant = item.variant
    return Draft("variant_gene", variant.rsid, item.gene.symbol, variant.band, question, AnswerFormat.SYMBOL)


def _nearest(item: Measured) -> Draft:
    nearest = item.near[0][0]
    variant = item.variant

    def question(turn: int) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        others = [gene.symbol for gene, _ in item.near[1:]]
        wrong = shuffled(others, str, f"candidates {variant.rsid}")
        at = turn % len(item.near)
        listed = ", ".join([*wrong[:at], nearest.symbol, *wrong[at:]])
        lines = f'Which of these genes is nearest to variant "{variant.rsid}"?\nGenes: {listed}'
        return lines, (), {"answer": nearest.symbol}

    form, choices = AnswerFormat.SYMBOL, len(item.near)
    return Draft("nearest_gene", variant.rsid, nearest.symbol, variant.band, question, form, choices)


def _symbol(gene: Gene) -> str:
    return gene.symbol
