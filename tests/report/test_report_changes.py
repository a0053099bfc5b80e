"""An edit is told apart by what it touches: text constants, code, documentation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from report.changes import blanked, count, hunks, zones

PROGRAM = '''"""A loop."""

RULES: str = (
    "Answer in tags. "
    "Be brief."
)
SHORT = "x"


def run(task, api):
    """Run it."""
    # a note
    text = api.generate([{"role": "system", "content": RULES, "source": "harness"}])
    for part in ("one", "two"):
        text += part
    api.submit(text)
'''


def changed(old: str, new: str) -> list[str]:
    assert PROGRAM.count(old) == 1, old
    return [hunk.label for hunk in hunks(PROGRAM, PROGRAM.replace(old, new))]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"Be brief."', '"Think first."', "text"),
        ('SHORT = "x"', 'SHORT = "y"', "text"),
        ('SHORT = "x"\n', 'SHORT = "x"\nMORE = "Look it up."\n', "text"),
        ('    for part in ("one", "two"):', '    for part in ("one", "three"):', "text"),
        ("    api.submit(text)", "    api.submit(text.strip())", "code"),
        ("    # a note", "    # another note", "documentation"),
        ('    """Run it."""', '    """Run it twice."""', "documentation"),
        ('"""A loop."""', '"""A loop.\n\nIt ends.\n"""', "documentation"),
        ('SHORT = "x"\n\n', 'SHORT = "x"\n\n\n', "blank lines"),
        ('SHORT = "x"', 'SHORT = "y"\nTIMES = 3', "text and code"),
    ],
)
def test_each_hunk_names_what_it_touches(old: str, new: str, expected: str) -> None:
    assert changed(old, new) == [expected]


def test_a_rewritten_paragraph_is_one_hunk_and_two_places_are_two() -> None:
    rewritten = PROGRAM.replace(
        '    "Answer in tags. "\n    "Be brief."\n', '    "Look. "\n    "Then think. "\n    "Answer."\n'
    )
    assert count(hunks(PROGRAM, rewritten)) == {"text": 1, "code": 0, "documentation": 0}
    both = rewritten.replace("api.submit(text)", "api.submit(text[:9])")
    assert count(hunks(PROGRAM, both)) == {"text": 1, "code": 1, "documentation": 0}
    assert hunks(PROGRAM, PROGRAM) == ()


def test_a_string_that_is_computed_is_code() -> None:
    assert zones('A = "x" * n\nB = "x"\n') == ["code", "text"]


def test_a_program_that_does_not_parse_is_code_throughout() -> None:
    assert zones("def run(:\n\n  'x'\n") == ["code", None, "code"]


def test_literals_are_blanked_and_nothing_else() -> None:
    assert blanked('note("Be brief", 3)') == blanked('note("Think", 3)') != blanked('note("Think", 4)')


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_any_two_texts_have_hunks_that_hold_every_changed_line(before: str, after: str) -> None:
    found = hunks(before, after)
    gone = [line.text for hunk in found for line in hunk.lines if line.mark == "-"]
    came = [line.text for hunk in found for line in hunk.lines if line.mark == "+"]
    old, new = before.splitlines(), after.splitlines()
    assert len(old) - len(gone) == len(new) - len(came)
