"""Reads the CC0 tables of npm `ideogram` 1.53.0: human genes, ClinVar variants, GRCh38 cytobands.

Must not know which questions are asked of them.
"""

import bisect
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final
from urllib.parse import unquote

CHROMOSOMES: Final = (*(str(number) for number in range(1, 23)), "X", "Y")
_VARIANT_TYPES: Final = (
    "SNV",
    "microsatellite",
    "duplication",
    "deletion",
    "indel",
    "insertion",
    "inversion",
)
"""In the order of the source's key `variant_types`."""


@dataclass(frozen=True)
class Band:
    name: str
    """Chromosome, arm and band, for example `17p13.1`."""
    chromosome: str
    start: int
    end: int
    """Base pairs, 1-based, both ends inside."""


@dataclass(frozen=True)
class Gene:
    symbol: str
    chromosome: str
    start: int
    end: int
    name: str
    band: str
    """The cytoband of the gene's middle."""

    @property
    def length(self) -> int:
        return self.end - self.start + 1


@dataclass(frozen=True)
class Variant:
    rsid: str
    chromosome: str
    position: int
    type: str
    band: str


def read_bands(folder: Path) -> list[Band]:
    rows = json.loads((folder / "homo-sapiens.json").read_text(encoding="utf-8"))["chrBands"]
    parts = [str(row).split(" ") for row in rows]
    return [
        Band(name=p[0] + p[1] + p[2], chromosome=p[0], start=int(p[5]), end=int(p[6]))
        for p in parts
        if p[0] in CHROMOSOMES
    ]


class BandIndex:
    """Finds the band at a position."""

    def __init__(self, bands: Sequence[Band]) -> None:
        self._bands: dict[str, list[Band]] = defaultdict(list)
        for band in sorted(bands, key=lambda band: (band.chromosome, band.start)):
            self._bands[band.chromosome].append(band)

    def at(self, chromosome: str, position: int) -> str:
        """The band's name, or an empty text outside all bands."""
        bands = self._bands.get(chromosome, [])
        index = bisect.bisect_right(bands, position, key=lambda band: band.start) - 1
        return bands[index].name if index >= 0 and position <= bands[index].end else ""


def read_genes(folder: Path, index: BandIndex) -> list[Gene]:
    """All genes with a symbol that occurs once, in the order of the source (best described first)."""
    genes: list[Gene] = []
    for row in _rows(folder / "homo-sapiens-genes.tsv.gz"):
        chromosome, start, size, _, symbol, name = row[:6]
        first, last = int(start), int(start) + int(size) - 1
        band = index.at(chromosome, (first + last) // 2)
        if symbol and band:
            genes.append(Gene(symbol, chromosome, first, last, unquote(name), band))
    seen = Counter(gene.symbol for gene in genes)
    return [gene for gene in genes if seen[gene.symbol] == 1]


def read_variants(folder: Path, index: BandIndex) -> list[Variant]:
    """All variants with an rsID that names one position and one type, in genome order."""
    found: dict[str, set[Variant]] = defaultdict(set)
    for row in _rows(folder / "homo-sapiens-variants.tsv.gz"):
        if len(row) < 13 or not row[12].isdigit() or row[0] not in CHROMOSOMES:
            continue
        position, kind = int(row[1]), _VARIANT_TYPES[int(row[9])]
        variant = Variant("rs" + row[12], row[0], position, kind, index.at(row[0], position))
        found[variant.rsid].add(variant)
    return [next(iter(same)) for same in found.values() if len(same) == 1]


class GeneIndex:
    """Finds the genes that contain a position."""

    def __init__(self, genes: Sequence[Gene]) -> None:
        self._genes: dict[str, list[Gene]] = defaultdict(list)
        for gene in sorted(genes, key=lambda gene: (gene.chromosome, gene.start, gene.end)):
            self._genes[gene.chromosome].append(gene)
        # The furthest end among genes up to each place: below a position, no earlier gene holds it.
        self._reach = {c: list(accumulate((g.end for g in own), max)) for c, own in self._genes.items()}

    def holding(self, chromosome: str, position: int) -> list[Gene]:
        genes, reach = self._genes.get(chromosome, []), self._reach.get(chromosome, [])
        at = bisect.bisect_right(genes, position, key=lambda gene: gene.start) - 1
        held: list[Gene] = []
        while at >= 0 and reach[at] >= position:
            if genes[at].end >= position:
                held.append(genes[at])
            at -= 1
        return held


def _rows(path: Path) -> Iterator[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from (line.rstrip("\n").split("\t") for line in lines if not line.startswith("#"))
