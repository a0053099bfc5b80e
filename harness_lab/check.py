"""Checks of a program's text. It is parsed, never executed (PROP-07).

An error refuses the program. A notice names a part that probably does nothing; whether the whole program
still changes what the model receives is decided by the dry run (`dryrun.py`): a pattern alone is no reason.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel, ConfigDict

from harness_lab.patterns import dead_constants, dead_defaults, never_calls, only_constant_answers

MAX_BYTES: Final = 64 * 1024
_LETTER_PREFERENCE: Final = re.compile(
    r"\b(?:answer|choose|pick|prefer|select|guess|say|use)\s+(?:option\s+|letter\s+)?[\"'(]?[A-H][\"')]?(?=[.,;!\s]*(?:$|\n|[.,;!]))"
)
UNCHANGED: Final = "what the model receives is unchanged"


class Checked(BaseModel):
    """What was found. `errors` empty means that the program may go on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    errors: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


def check_program(code: str, parent: str | None = None) -> Checked:
    """Check one program, and against its parent when there is one."""
    if len(code.encode("utf-8", "replace")) > MAX_BYTES:
        return Checked(errors=(f"the program is larger than {MAX_BYTES} bytes",))
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return Checked(errors=(f"syntax error{line}: {getattr(error, 'msg', error)}",))
    errors = list(_shape_problems(tree)) or list(_effect_problems(tree))
    if not errors and parent is not None and _same_but_for_comments(tree, parent):
        errors.append(f"only comments or docstrings differ from the parent: {UNCHANGED}")
    errors += _letter_preferences(tree)
    return Checked(errors=tuple(errors), notices=(*dead_defaults(tree), *dead_constants(tree)))


def _shape_problems(tree: ast.Module) -> Iterator[str]:
    runs = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == "run"]
    if len(runs) != 1:
        yield f"the program needs exactly one top-level function run(task, api), it has {len(runs)}"
        return
    if isinstance(runs[0], ast.AsyncFunctionDef):
        yield "run(task, api) must be an ordinary function, not async"
    given = runs[0].args
    positional = [*given.posonlyargs, *given.args]
    if len(positional) != 2 or given.vararg or given.kwonlyargs or given.kwarg:
        yield "run must take exactly two positional parameters: run(task, api)"
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(runs[0])):
        yield "run(task, api) must not be a generator"


def _effect_problems(tree: ast.Module) -> Iterator[str]:
    yield from never_calls(
        tree, "generate", "the program never calls api.generate, so nothing reaches the model"
    )
    yield from never_calls(tree, "submit", "the program never calls api.submit, so it can give no answer")
    yield from only_constant_answers(tree)


def _same_but_for_comments(tree: ast.Module, parent: str) -> bool:
    try:
        return ast.dump(_without_docstrings(tree)) == ast.dump(_without_docstrings(ast.parse(parent)))
    except SyntaxError:
        return False


def _without_docstrings(tree: ast.Module) -> ast.Module:
    copy = ast.parse(ast.unparse(tree))
    for node in ast.walk(copy):
        if isinstance(
            node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return copy


def _letter_preferences(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _LETTER_PREFERENCE.search(node.value)
            if found:
                yield f"line {node.lineno} prefers an option letter: {found[0]!r}"
