"""Invented worked examples, one list an answer form. About nothing that any release could ask.

Each holds full rows and which columns its question asks for, so that one list serves every layout. Must not
know a release; a test holds the words against the bundled one.
"""

from typing import Final, NamedTuple


class Example(NamedTuple):
    """One question with its rows and its answer."""

    question: str
    rows: tuple[dict[str, str], ...]
    asked: tuple[str, ...]
    """The columns that a focused look-up would keep."""
    answer: str


def _sample(name: str, owner: str, distance: str) -> dict[str, str]:
    return {"sample": name, "owner": owner, "distance": distance}


EXAMPLES: Final[dict[str, tuple[Example, ...]]] = {
    "letter": (
        Example(
            'On which shelf is item "Vorin"?\nA. 2p21\nB. 7q14\nC. 9k3\nD. 4d8',
            ({"item": "Vorin", "side": "north", "weight": "51", "shelf": "7q14"},),
            ("shelf",),
            "7q14",
        ),
        Example(
            'On which shelf is item "Dalet"?\nA. K4-m\nB. R1-z\nC. T8-c\nD. S2-b',
            ({"item": "Dalet", "side": "south", "weight": "873", "shelf": "K4-m"},),
            ("shelf",),
            "K4-m",
        ),
        Example(
            'On which shelf is item "Muro"?\nA. 8s2\nB. 6v1\nC. 1n9\nD. 3t5',
            ({"item": "Muro", "side": "east", "weight": "12", "shelf": "3t5"},),
            ("shelf",),
            "3t5",
        ),
    ),
    "symbol": (
        Example(
            'Which owner has sample "k104"?',
            ({"sample": "k104", "shelf": "41", "owner": "ZORB1", "kind": "new"},),
            ("owner",),
            "ZORB1",
        ),
        Example(
            'Which of these owners is nearest to sample "k77"?\nOwners: QUAR, MELT2, VISP4',
            (
                _sample("k77", "MELT2", "310"),
                _sample("k77", "QUAR", "4120"),
                _sample("k77", "VISP4", "99034"),
            ),
            ("owner", "distance"),
            "MELT2",
        ),
        Example(
            'Which owner has sample "k218"?',
            ({"sample": "k218", "shelf": "5", "owner": "TANO7", "kind": "old"},),
            ("owner",),
            "TANO7",
        ),
    ),
    "number": (
        Example(
            'How heavy in grams is item "Vorin"?',
            ({"item": "Vorin", "side": "north", "height": "5312", "weight": "881"},),
            ("weight",),
            "881",
        ),
        Example(
            'How heavy in grams is item "Dalet"?',
            ({"item": "Dalet", "side": "south", "height": "74", "weight": "19405"},),
            ("weight",),
            "19405",
        ),
        Example(
            'How high in metres is item "Muro"?',
            ({"item": "Muro", "side": "east", "height": "90210", "weight": "362"},),
            ("height",),
            "90210",
        ),
    ),
    "rsid": (
        Example(
            'Which variant does sample "k104" carry?',
            ({"sample": "k104", "shelf": "41", "variant": "rs900000001"},),
            ("variant",),
            "rs900000001",
        ),
        Example(
            'Which variant does sample "k77" carry?',
            ({"sample": "k77", "shelf": "8", "variant": "rs900000417"},),
            ("variant",),
            "rs900000417",
        ),
    ),
    "text": (
        Example(
            'In which town is item "Vorin"?',
            ({"item": "Vorin", "weight": "51", "town": "Old Brell"},),
            ("town",),
            "Old Brell",
        ),
        Example(
            'In which town is item "Dalet"?',
            ({"item": "Dalet", "weight": "873", "town": "Quessen"},),
            ("town",),
            "Quessen",
        ),
    ),
}
