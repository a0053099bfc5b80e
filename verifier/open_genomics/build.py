"""Builds the bundled release `open-genomics`, byte for byte the same on every machine.

    python -m verifier.open_genomics.build SOURCE_DIR OUT_DIR

SOURCE_DIR is the folder with the data files of npm `ideogram` 1.53.0 (CC0-1.0); OUT_DIR must not exist.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from verifier.freeze import freeze
from verifier.open_genomics.lake import DESCRIPTIONS, choose
from verifier.open_genomics.questions import FAMILIES, assign
from verifier.open_genomics.source import BandIndex, read_bands, read_genes, read_variants
from verifier.release import Release, ReleaseError
from verifier.task import Split

# Tasks of each split and family. The whole size of the release is set here.
COUNTS: Final[dict[Split, dict[str, int]]] = {
    "train": {"variant_gene": 64, "gene_length": 64, "gene_location": 56, "nearest_gene": 56},
    "val": {"variant_gene": 16, "gene_length": 16, "gene_location": 14, "nearest_gene": 14},
    "test": {"variant_gene": 16, "gene_length": 16, "gene_location": 14, "nearest_gene": 14},
}
# Percent of the cytobands that each split draws from.
BAND_SHARES: Final[dict[Split, int]] = {"train": 60, "val": 20, "test": 20}

LICENCE_TEXT: Final = """\
The tables and questions of this release are derived from the data files of the npm package ideogram 1.53.0,
which its author has dedicated to the public domain under CC0 1.0 Universal
(https://creativecommons.org/publicdomain/zero/1.0/). The derived release is dedicated under the same terms.
Those files are in turn derived from Ensembl release 110, the UCSC/NCBI cytobands of GRCh38 and NCBI ClinVar.
Not for medical use.
"""


def build(source: Path, destination: Path) -> Release:
    """Make the release. Raises ReleaseError when a source file is missing or the destination exists."""
    try:
        bands = read_bands(source)
        index = BandIndex(bands)
        lake = choose(read_genes(source, index), read_variants(source, index), bands)
    except OSError as error:
        where = f"{error.filename}: {error.strerror}"
        raise ReleaseError(f"{where}; name the data folder of ideogram 1.53.0") from None
    tasks, references = assign(lake, COUNTS, BAND_SHARES)
    return freeze(
        destination,
        name="open-genomics",
        licence="CC0-1.0",
        sources=("npm ideogram 1.53.0: genes (Ensembl 110), variants (ClinVar 2024-12-15), GRCh38 bands",),
        notes=(
            "A gene's band is the cytoband of its middle.",
            "A material group is the cytoband of the subject; whole bands belong to one split.",
            "distances.tsv lists the candidates of a variant in no order of distance.",
        ),
        families=FAMILIES,
        tasks=tasks,
        references=references,
        lake=lake.files(),
        lake_descriptions=DESCRIPTIONS,
        texts={"LICENSE": LICENCE_TEXT},
    )


def main() -> int:
    """Command line: print the digest, or one line of error and status 1."""
    parser = argparse.ArgumentParser(description="Build the bundled release open-genomics.")
    parser.add_argument("source", type=Path, help="folder with the data files of npm ideogram 1.53.0")
    parser.add_argument("destination", type=Path, help="release folder to write; must not exist")
    arguments = parser.parse_args()
    try:
        release = build(arguments.source, arguments.destination)
    except (ReleaseError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{release.name} {release.digest}: {dict(release.header.counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
