"""The small tables of the `open-genomics` data lake, chosen and written out deterministically.

Must not know which task asks for which row.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from verifier.open_genomics.source import Band, Gene, GeneIndex, Variant

GENES: Final = 3000
"""Rows of genes.tsv: the first genes of the source, which is sorted by interest."""
VARIANTS: Final = 3000
"""Rows of variants.tsv."""
VARIANTS_PER_GENE: Final = 6
NEAREST_VARIANTS: Final = 520
"""Variants of distances.tsv, each with CANDIDATES rows."""
CANDIDATES: Final = (3, 4)
_NAME_LENGTH: Final = 40

DESCRIPTIONS: Final = {
    "genes.tsv": "Human genes on GRCh38, one row a gene: place, length in base pairs, cytoband, name.",
    "variants.tsv": "Disease variants with the one gene in which each lies.",
    "distances.tsv": "Base pairs from a variant to the near end of genes that do not hold it.",
    "bands.tsv": "Cytobands of GRCh38 with first and last base pair.",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Located:
    """A variant and the one gene that holds it."""

    variant: Variant
    gene: Gene


@dataclass(frozen=True)
class Measured:
    """A variant and candidate genes with their distances, nearest first, no two equal, none 0."""

    variant: Variant
    near: tuple[tuple[Gene, int], ...]


@dataclass(frozen=True)
class Lake:
    genes: tuple[Gene, ...]
    variants: tuple[Located, ...]
    distances: tuple[Measured, ...]
    bands: tuple[Band, ...]

    def files(self) -> dict[str, bytes]:
        """File contents by name."""
        genes = [
            (g.symbol, g.chromosome, g.start, g.end, g.length, g.band, _short(g.name)) for g in self.genes
        ]
        variants = [
            (v.variant.rsid, v.variant.chromosome, v.variant.position, v.gene.symbol, v.variant.type)
            for v in self.variants
        ]
        distances = [
            (m.variant.rsid, gene.symbol, apart)
            for m in self.distances
            # Not in the order of distance: the first row must not be the answer.
            for gene, apart in shuffled(m.near, lambda pair: pair[0].symbol, m.variant.rsid)
        ]
        bands = [(b.name, b.chromosome, b.start, b.end) for b in self.bands]
        return {
            "genes.tsv": _tsv("symbol chromosome start end length band name", genes),
            "variants.tsv": _tsv("variant chromosome position gene type", variants),
            "distances.tsv": _tsv("variant gene distance", distances),
            "bands.tsv": _tsv("band chromosome start end", bands),
        }


def shuffled(items: Iterable[T], key: Callable[[T], str], salt: str) -> list[T]:
    """A fixed pseudo-random order, the same on every machine and Python."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{salt}\n{key(item)}".encode()).digest())


def choose(all_genes: Sequence[Gene], variants: Sequence[Variant], bands: Sequence[Band]) -> Lake:
    """Pick the rows of every table. A variant is in variants.tsv or in distances.tsv, never in both."""
    genes = [gene for gene in all_genes if gene.name][:GENES]
    listed = {gene.symbol for gene in genes}
    index = GeneIndex(all_genes)
    located: list[Located] = []
    for variant in shuffled(variants, lambda variant: variant.rsid, "variants"):
        holding = index.holding(variant.chromosome, variant.position)
        # A variant and its gene share the band, so that the material group of both is the same.
        if len(holding) == 1 and holding[0].symbol in listed and holding[0].band == variant.band:
            located.append(Located(variant, holding[0]))
    kept: Counter[str] = Counter()
    in_variants: list[Located] = []
    others: list[Located] = []
    for item in located:
        room = kept[item.gene.symbol] < VARIANTS_PER_GENE and len(in_variants) < VARIANTS
        (in_variants if room else others).append(item)
        kept[item.gene.symbol] += room
    return Lake(
        genes=tuple(genes),
        variants=tuple(sorted(in_variants, key=lambda item: _place(item.variant))),
        distances=tuple(sorted(_measure(others, genes), key=lambda item: _place(item.variant))),
        bands=tuple(bands),
    )


def _measure(located: Sequence[Located], genes: Sequence[Gene]) -> list[Measured]:
    by_chromosome: dict[str, list[Gene]] = defaultdict(list)
    for gene in genes:
        by_chromosome[gene.chromosome].append(gene)
    measured: list[Measured] = []
    holders: set[str] = set()
    for item in located:
        variant = item.variant
        if item.gene.symbol in holders:
            continue
        holders.add(item.gene.symbol)
        count = CANDIDATES[len(measured) % len(CANDIDATES)]
        apart = [(gene, _distance(variant, gene)) for gene in by_chromosome[variant.chromosome]]
        outside = [pair for pair in apart if pair[1] > 0]
        nearest = sorted(outside, key=lambda pair: (pair[1], pair[0].symbol))[:count]
        distinct = len({distance for _, distance in nearest}) == count
        if distinct and nearest[0][0].band == variant.band:
            measured.append(Measured(variant, tuple(nearest)))
        if len(measured) == NEAREST_VARIANTS:
            break
    return measured


def _distance(variant: Variant, gene: Gene) -> int:
    """Base pairs to the gene's nearest end, 0 inside it."""
    return max(gene.start - variant.position, variant.position - gene.end, 0)


def _place(variant: Variant) -> tuple[str, int, str]:
    return variant.chromosome, variant.position, variant.rsid


def _short(name: str) -> str:
    clean = " ".join(name.split())
    return clean if len(clean) <= _NAME_LENGTH else clean[:_NAME_LENGTH].rsplit(" ", 1)[0]


def _tsv(header: str, rows: Iterable[tuple[object, ...]]) -> bytes:
    lines = [header.replace(" ", "\t"), *("\t".join(str(cell) for cell in row) for row in rows)]
    return ("\n".join(lines) + "\n").encode()
