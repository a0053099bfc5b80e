"""Checks of a program's text. It is parsed, never executed (PROP-07).

An error refuses the program. A notice names a part that probably does nothing; whether the whole program
still changes what the model receives is decided by the dry run (`dryrun.py`): a pattern alone is no reason.
"""

import ast
from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel, ConfigDict

from harness_lab.folding import folded_texts
from harness_lab.interface import call_problems, import_notices, shape_problems
from harness_lab.patterns import notices, refusals
from harness_lab.preferences import letter_preference
from harness_lab.syntax import ProgramSyntaxError, bare, documentation, parse, reads_itself

MAX_BYTES: Final = 64 * 1024
UNCHANGED: Final = "what the model receives is unchanged"


class Checked(BaseModel):
    """What was found. `errors` empty means that the program may go on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    errors: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


def check_program(code: str, parent: str | None = None) -> Checked:
    """Check one program, and against its parent when there is one. Never raises, whatever the text."""
    size = len(code.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        return Checked(errors=(f"the program is larger than {MAX_BYTES} bytes: it has {size}",))
    try:
        tree = parse(code)
        return _checked(code, tree, parent)
    except ProgramSyntaxError as error:
        return Checked(errors=(str(error),))
    except RecursionError:
        return Checked(errors=("the program is nested too deeply to be checked",))


def _checked(code: str, tree: ast.Module, parent: str | None) -> Checked:
    errors = list(shape_problems(tree)) or [*refusals(tree), *call_problems(tree)]
    if not errors and parent is not None and _same_but_for_comments(code, parent):
        errors.append(f"only comments, docstrings or annotations differ from the parent: {UNCHANGED}")
    errors += _letter_preferences(tree)
    return Checked(errors=tuple(errors), notices=(*notices(tree), *import_notices(tree)))


def _same_but_for_comments(code: str, parent: str) -> bool:
    try:
        one, other = parse(code), parse(parent)
    except ProgramSyntaxError:
        return False
    return not reads_itself(one) and bare(one) == bare(other)


def _letter_preferences(tree: ast.Module) -> Iterator[str]:
    """In every text that is no documentation, pieced together where it is in pieces."""
    apart = documentation(tree)
    for statement in tree.body:
        if id(statement) in apart:
            continue
        for text, line in folded_texts(statement).items():
            if text not in apart.values() and (found := letter_preference(text)):
                yield f"line {line} prefers an option instead of evidence: {found!r}"
