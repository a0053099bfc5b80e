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


def _item(name: str, **cells: str) -> tuple[dict[str, str], ...]:
    return ({"item": name, **cells},)


def _stations(house: str, *pairs: tuple[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"house": house, "station": station, "distance": far} for station, far in pairs)


EXAMPLES: Final[dict[str, tuple[Example, ...]]] = {
    "letter": (
        Example(
            'On which shelf is item "Vorin"?\nA. N2-21\nB. S7-14\nC. N9-3\nD. E4-8',
            _item("Vorin", side="north", weight="51", shelf="S7-14"),
            ("shelf",),
            "S7-14",
        ),
        Example(
            'On which shelf is item "Dalet"?\nA. E3-11\nB. W1-2.4\nC. N8-31\nD. S2-5.1',
            _item("Dalet", side="south", weight="873", shelf="S2-5.1"),
            ("shelf",),
            "S2-5.1",
        ),
        Example(
            'On which shelf is item "Muro"?\nA. W8-2\nB. E6-1\nC. N1-9\nD. S3-5',
            _item("Muro", side="east", weight="12", shelf="W8-2"),
            ("shelf",),
            "W8-2",
        ),
    ),
    "symbol": (
        Example(
            'Which station is closest to house "k77"?\nOne of: QUAR, MELT2, VISP4',
            _stations("k77", ("VISP4", "310"), ("QUAR", "4120"), ("MELT2", "99034")),
            ("station", "distance"),
            "VISP4",
        ),
        Example(
            'Which owner has sample "k104"?',
            ({"sample": "k104", "shelf": "41", "owner": "ZORB1", "kind": "new"},),
            ("owner",),
            "ZORB1",
        ),
        Example(
            'Which station is closest to house "k39"?\nOne of: RUX1, DAMM2, PELO3, BIX',
            _stations("k39", ("DAMM2", "72"), ("PELO3", "801"), ("RUX1", "15500"), ("BIX", "61022")),
            ("station", "distance"),
            "DAMM2",
        ),
    ),
    "number": (
        Example(
            'How heavy in grams is item "Vorin"?',
            _item("Vorin", side="north", height="5312", weight="881"),
            ("weight",),
            "881",
        ),
        Example(
            'How heavy in grams is item "Dalet"?',
            _item("Dalet", side="south", height="74", weight="19405"),
            ("weight",),
            "19405",
        ),
        Example(
            'How high in metres is item "Muro"?',
            _item("Muro", side="east", height="90210", weight="362"),
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
            _item("Vorin", weight="51", town="Old Brell"),
            ("town",),
            "Old Brell",
        ),
        Example(
            'In which town is item "Dalet"?',
            _item("Dalet", weight="873", town="Quessen"),
            ("town",),
            "Quessen",
        ),
    ),
}
"""A letter may be given as its option's text, which a small model copies more surely than it maps."""
