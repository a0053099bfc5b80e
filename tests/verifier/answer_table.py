"""The decisions on malformed answers, one a row: the tests prove them and docs/grading.md shows them.

`python -m tests.verifier.answer_table` writes them into the page again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from verifier.answer_format import AnswerFormat

PAGE: Final = Path(__file__).parents[2] / "docs" / "grading.md"
_BEGIN: Final = "<!-- decisions: written by python -m tests.verifier.answer_table -->"
_END: Final = "<!-- end of decisions -->"

OPTIONS: Final = ("17p13.1", "3q21", "Xq28", "5")
REFERENCES: Final[dict[AnswerFormat, dict[str, Any]]] = {
    AnswerFormat.LETTER: {"answer": "B"},
    AnswerFormat.SYMBOL: {"answer": "TP53"},
    AnswerFormat.RSID: {"answer": "rs12"},
    AnswerFormat.NUMBER: {"answer": "120000", "relative": 0.01, "unit": "mM"},
    AnswerFormat.SET: {"answer": "TP53, BRCA1"},
    AnswerFormat.TEXT: {"answer": "New York & Oslo"},
}
"""What each row is compared with."""

Outcome = Literal["right", "wrong", "invalid"]


@dataclass(frozen=True)
class Decision:
    """One submitted text and what becomes of it."""

    form: AnswerFormat
    text: str
    outcome: Outcome
    reason: str
    why: str


def _rows(form: AnswerFormat, *rows: tuple[str, Outcome, str, str]) -> list[Decision]:
    """Contents, put between tags where the text has none of its own."""
    return [
        Decision(form, text if "answer" in text.casefold() else f"<answer>{text}</answer>", *rest)
        for text, *rest in rows
    ]


_ONE: Final = "several answers would let a text hedge; none is chosen"
_BARE: Final = "the answer stands bare; markup is the program's to remove"
_SAME: Final = "the same thing in other characters"
_UNREAD: Final = "nothing is guessed"

DECISIONS: Final = [
    *_rows(
        AnswerFormat.LETTER,
        ("<answer>B</answer>", "right", "right", "the plain form"),
        (
            "Because ... <answer>B</answer> as the table shows.",
            "right",
            "right",
            "text around the pair is free",
        ),
        ("<think>C?</think><answer>B</answer>", "right", "right", "thinking is text around the pair"),
        (
            "A<|im_end|>\n<answer>B</answer>",
            "right",
            "right",
            "end-of-turn words are text; one pair is there",
        ),
        ("The answer is B", "invalid", "tags = 0", "an answer without tags is none"),
        ("B</answer>", "invalid", "unpaired tags: 0 open, 1 closed", _UNREAD),
        ("<answer>B", "invalid", "unpaired tags: 1 open, 0 closed", "the answer may go on where it was cut"),
        ("</answer>B<answer>", "invalid", "the closing tag comes first", _UNREAD),
        ("<answer></answer>", "invalid", "empty answer", "nothing is stated"),
        ("<answer> \u200b\n</answer>", "invalid", "empty answer", "nothing visible is stated"),
        ('Form: "<answer>value</answer>". <answer>B</answer>', "invalid", "tags = 2", "T08; " + _ONE),
        (
            "<answer>B</answer> <answer>B</answer>",
            "invalid",
            "tags = 2",
            "a pair too many, even if both agree",
        ),
        ("<answer>A</answer> or <answer>B</answer>", "invalid", "tags = 2", _ONE),
        ("<answer><answer>B</answer></answer>", "invalid", "tags = 2", "nested pairs are two pairs"),
        ("<answer><answer>B</answer>", "invalid", "unpaired tags: 2 open, 1 closed", _UNREAD),
        ("<think><answer>C</answer></think><answer>B</answer>", "invalid", "tags = 2", _ONE),
        ("<ANSWER>B</ANSWER>", "invalid", "misspelt tags", "the asked form is exact"),
        ("<Answer>B</answer>", "invalid", "misspelt tags", "the asked form is exact"),
        ("< answer >B</ answer >", "invalid", "misspelt tags", "the asked form is exact"),
        ("<answer type='letter'>B</answer>", "invalid", "misspelt tags", "the asked form is exact"),
        ("<answer>B</answer><ANSWER>A</ANSWER>", "invalid", "misspelt tags", _ONE),
        ("&lt;answer&gt;B&lt;/answer&gt;", "invalid", "tags = 0", "escaped tags are no tags"),
        ("＜answer＞B＜/answer＞", "invalid", "tags = 0", "full-width tags are no tags"),
        ("<answer/>", "invalid", "misspelt tags", "nothing is stated"),
        ("b", "right", "right", "case makes no other option"),
        (" \n B \t", "right", "right", "white space makes no other option"),
        ("Ｂ", "right", "right", _SAME),
        ("𝐁", "right", "right", _SAME),
        ("\u200bB\u200d", "right", "right", "zero-width characters show nothing"),
        ("\u200fB\u202c", "right", "right", "direction marks show nothing"),
        ("В", "invalid", "not an option", "a Cyrillic letter is another letter"),
        ("3q21", "right", "right", "the full text of one option"),
        ("3Q21", "right", "right", "the full text, case folded"),
        ("B. 3q21", "right", "right", "letter and text agree"),
        ("B) 3q21", "right", "right", "letter and text agree"),
        ("D. 5", "wrong", "wrong", "a readable wrong option"),
        ("5", "wrong", "wrong", "the text of option D, though one character"),
        ("A", "wrong", "wrong", "a readable wrong option"),
        ("A. 3q21", "invalid", "letter and text disagree", _ONE),
        ("E", "invalid", "no option E", "no such option"),
        ("A or B", "invalid", "not an option", _ONE),
        ("A, B", "invalid", "not an option", _ONE),
        ("AB", "invalid", "not an option", _ONE),
        ("not B", "invalid", "not an option", _UNREAD),
        ("B because of the band", "invalid", "not an option", "prose belongs outside the tags"),
        ("B.", "invalid", "not an option", _BARE),
        ("B)", "invalid", "not an option", _BARE),
        ("(B)", "invalid", "not an option", _BARE),
        ("Option B", "invalid", "not an option", _BARE),
        ("**B**", "invalid", "markup", _BARE),
        ("`B`", "invalid", "markup", _BARE),
        ('"B"', "invalid", "markup", _BARE),
        ("$B$", "invalid", "markup", _BARE),
        (r"\boxed{B}", "invalid", "markup", _BARE),
        ("&#66;", "invalid", "markup", _BARE),
        ("B<|im_end|>", "invalid", "markup", _BARE),
        ("<b>B</b>", "invalid", "markup", _BARE),
    ),
    *_rows(
        AnswerFormat.SYMBOL,
        ("TP53", "right", "right", "the plain form"),
        ("tp53", "right", "right", "T10; symbols are compared without case"),
        (" TP53\n", "right", "right", "white space around"),
        ("ＴＰ５３", "right", "right", _SAME),
        ("TP\u200b53", "right", "right", "zero-width characters show nothing"),
        ("TP53 (p53)", "wrong", "extra text", "T10; one symbol was asked for"),
        ("TP53 or BRCA1", "wrong", "extra text", _ONE),
        ("TP53, BRCA1", "wrong", "extra text", _ONE),
        ("TP53/BRCA1", "wrong", "extra text", _ONE),
        ("TP53.", "wrong", "wrong", "a dot may belong to a symbol"),
        ("TP63", "wrong", "wrong", "another symbol"),
        ("TP5³", "wrong", "wrong", "a raised digit is another character"),
        ("**TP53**", "invalid", "markup", _BARE),
        ("_TP53_", "invalid", "markup", _BARE),
        ("`TP53`", "invalid", "markup", _BARE),
        ("'TP53'", "invalid", "markup", _BARE),
        (r"\text{TP53}", "invalid", "markup", _BARE),
        ("TP53&nbsp;", "invalid", "markup", _BARE),
        ("- TP53", "invalid", "markup", _BARE),
    ),
    *_rows(
        AnswerFormat.RSID,
        ("rs12", "right", "right", "the plain form"),
        (" rs12 ", "right", "right", "T10; white space around"),
        ("rs12\u200b", "right", "right", "zero-width characters show nothing"),
        ("RS12", "wrong", "an rsID is written in lower case", "T10; an id is exact"),
        ("rs123", "wrong", "wrong", "another id"),
        ("rs012", "wrong", "wrong", "an id is exact"),
        ("ｒｓ12", "invalid", "not an rsID", "an id is exact"),
        ("rs 12", "invalid", "not an rsID", "an id is exact"),
        ("12", "invalid", "not an rsID", "an id is exact"),
        ("rs12, rs13", "invalid", "not an rsID", _ONE),
        ("rs12 (lead)", "invalid", "not an rsID", _ONE),
        ("rs12-A", "invalid", "not an rsID", "an id is exact"),
        ("`rs12`", "invalid", "markup", _BARE),
    ),
    *_rows(
        AnswerFormat.NUMBER,
        ("120000", "right", "right", "the plain form"),
        ("120,000", "right", "right", "commas between groups of three"),
        ("120000.0", "right", "right", "the same value"),
        ("+120000", "right", "right", "the same value"),
        ("1.2e5", "right", "right", "the same value"),
        ("1.2E+05", "right", "right", "the same value"),
        ("1.2 × 10^5", "right", "right", "the same value"),
        ("1.2x10⁵", "right", "right", "the same value"),
        ("1.2*10**5", "right", "right", "the same value"),
        ("１２００００", "right", "right", _SAME),
        ("121200", "right", "right", "the tolerance's edge belongs to it"),
        ("121201", "wrong", "outside the tolerance", "just past the edge"),
        ("10^5", "wrong", "outside the tolerance", "100000, and not 10"),
        ("1.2 × 10⁻⁵", "wrong", "outside the tolerance", "a raised minus is read"),
        ("−120000", "wrong", "outside the tolerance", "the true minus is read"),
        ("–120000", "wrong", "outside the tolerance", "a dash before a number is a minus"),
        ("120000 mM", "right", "right", "the reference's unit"),
        ("120000MM", "wrong", "extra text", "M is mega or molar, m is milli"),
        ("120000 mm", "wrong", "extra text", "M is mega or molar, m is milli"),
        ("120000 M", "wrong", "extra text", "another unit"),
        ("120 million", "wrong", "extra text", "a word of scale is no unit of the reference"),
        ("120000%", "wrong", "extra text", "another unit"),
        ("120.000,0", "invalid", "not a number", "a comma never starts the decimals"),
        ("12,0000", "invalid", "not a number", "commas stand between groups of three"),
        ("120 000", "invalid", "not a number", "a space may part two numbers"),
        ("120_000", "invalid", "not a number", _UNREAD),
        ("about 120000", "invalid", "not a number", "one number was asked for"),
        ("~120000", "invalid", "not a number", "one number was asked for"),
        (">100000", "invalid", "markup", "a bound is no number"),
        ("119000-121000", "invalid", "not a number", _ONE),
        ("119000 to 121000", "invalid", "not a number", _ONE),
        ("119000 or 120000", "invalid", "not a number", _ONE),
        ("120000 ± 5000", "invalid", "not a number", _ONE),
        ("240000/2", "invalid", "not a number", "nothing is calculated"),
        ("1.2 × 105", "invalid", "not a number", "a lost power is not guessed"),
        ("one hundred", "invalid", "not a number", "digits were asked for"),
        ("٣", "invalid", "not a number", "ASCII digits were asked for"),
        ("½", "invalid", "not a number", _UNREAD),
        ("0x1d4c0", "invalid", "not a number", _UNREAD),
        ("nan", "invalid", "not a number", "no number"),
        ("1e999", "invalid", "not a finite number", "no finite number"),
        ("**120000**", "invalid", "markup", _BARE),
        ("$120000$", "invalid", "markup", _BARE),
        (r"1.2 \times 10^{5}", "invalid", "markup", _BARE),
        (r"\boxed{120000}", "invalid", "markup", _BARE),
    ),
    *_rows(
        AnswerFormat.SET,
        ("TP53, BRCA1", "right", "right", "the plain form"),
        ("brca1;tp53", "right", "right", "order and case are free"),
        ("BRCA1\nTP53\n", "right", "right", "line ends part items"),
        ("TP53, BRCA1, tp53,", "right", "right", "repeats and empty items are dropped"),
        ("TP53，BRCA1", "right", "right", _SAME),
        ("TP53", "wrong", "wrong", "an item is missing"),
        ("TP53, BRCA1, EGFR", "wrong", "wrong", "an item too many: no hedging"),
        ("TP53 BRCA1", "wrong", "wrong", "a space parts nothing"),
        ("TP53 and BRCA1", "wrong", "wrong", "words part nothing"),
        ("TP53 (p53), BRCA1", "wrong", "wrong", "an item is one name"),
        (", ;", "invalid", "empty answer", "nothing is stated"),
        ("[TP53, BRCA1]", "invalid", "markup", _BARE),
        ("{TP53, BRCA1}", "invalid", "markup", _BARE),
        ("'TP53', 'BRCA1'", "invalid", "markup", _BARE),
        ("- TP53\n- BRCA1", "invalid", "markup", _BARE),
        ("1. TP53\n2. BRCA1", "invalid", "markup", _BARE),
        ("**TP53**, BRCA1", "invalid", "markup", _BARE),
    ),
    *_rows(
        AnswerFormat.TEXT,
        ("New York & Oslo", "right", "right", "the plain form"),
        (" new\nYORK  & oslo ", "right", "right", "case and white space are folded"),
        ("Ｎｅｗ York ＆ Oslo", "right", "right", _SAME),
        ("New\u00ad York & Oslo\u200e", "right", "right", "invisible characters show nothing"),
        ("New York &amp; Oslo", "wrong", "wrong", "entities are not decoded"),
        ("**New York & Oslo**", "wrong", "wrong", "any text is an answer; it is compared as it stands"),
        ("New York & Oslo.", "wrong", "wrong", "any text is an answer; it is compared as it stands"),
        ("New York", "wrong", "wrong", "no part of the answer is the answer"),
    ),
]


def table() -> str:
    """The decisions as Markdown."""
    lines: list[str] = []
    for form in REFERENCES:
        reference = REFERENCES[form]
        shown = ", ".join(
            f"`{value}`" if key == "answer" else f"{key} `{value}`" for key, value in reference.items()
        )
        lines += [f"### {form}", "", f"Reference: {shown}."]
        if form is AnswerFormat.LETTER:
            lines[-1] += f" Options: {', '.join(f'`{option}`' for option in OPTIONS)}."
        lines += ["", "| submitted | outcome | reason | why |", "|---|---|---|---|"]
        lines += [_line(row) for row in DECISIONS if row.form is form]
        lines.append("")
    return "\n".join(lines)


def _line(row: Decision) -> str:
    text = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in row.text
    )
    text = text.replace("|", "\\|")
    quoted = f"`` {text} ``" if "`" in text else f"`{text}`"
    return f"| {quoted} | {row.outcome} | {row.reason} | {row.why} |"


def page_with_table(page: str) -> str:
    """The page with the decisions between its two marks."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n\n{table()}\n{_END}{rest.split(_END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
