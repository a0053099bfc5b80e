"""Whether a program uses what is there: the shape of `run`, the calls of `api`, importable modules.

The sandbox is the guard; this is the message that says beforehand what would fail in it (PROP-07).
"""

import ast
import sys
from collections.abc import Iterator
from typing import Final

_CALLS: Final = {"generate": "messages", "execute": "code", "submit": "text"}
_PROPERTIES: Final = frozenset({"left", "notice"})
_HOST: Final = frozenset(
    {"broker", "catalog", "flows", "harness_lab", "report", "rl", "tasks", "verifier", "prefect"}
)
_NO_USE: Final = {
    **dict.fromkeys(("socket", "ssl", "http", "urllib", "ftplib", "smtplib", "socketserver"), "no network"),
    **dict.fromkeys(("subprocess", "multiprocessing", "pty"), "no other program to start"),
    **dict.fromkeys(("ctypes", "gc", "ptrace"), "nothing of the host to reach"),
}
_GUARDS: Final = frozenset({"hasattr", "getattr"})


def shape_problems(tree: ast.Module) -> Iterator[str]:
    """Why the host could not call it as `run(task, api)`."""
    runs = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == "run"]
    if len(runs) != 1:
        yield f"the program needs exactly one top-level function run(task, api), it has {len(runs)}"
        return
    [run] = runs
    if isinstance(run, ast.AsyncFunctionDef):
        yield "run(task, api) must be an ordinary function, not async"
    if run.decorator_list:
        yield "run(task, api) must not be decorated: the host calls it as it stands"
    given = run.args
    positional = [*given.posonlyargs, *given.args]
    if len(positional) != 2 or given.vararg or given.kwonlyargs or given.kwarg:
        yield "run must take exactly two positional parameters: run(task, api)"
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own(run)):
        yield "run(task, api) must not be a generator"


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Its nodes without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _own(node)


def call_problems(tree: ast.Module) -> Iterator[str]:
    """Uses of `api` that would raise, unless the program guards them itself."""
    nodes = list(ast.walk(tree))
    guarded = any(isinstance(node, ast.Try | ast.TryStar) for node in nodes) or any(
        isinstance(node, ast.Name) and node.id in _GUARDS for node in nodes
    )
    if guarded or _rebound(nodes):
        return
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "api":
            if node.attr not in _CALLS and node.attr not in _PROPERTIES and not node.attr.startswith("_"):
                yield (
                    f"line {node.lineno}: api has no {node.attr}; it has generate, execute, submit, left and "
                    "notice"
                )
        elif isinstance(node, ast.Call):
            yield from _arguments(node)


def _rebound(nodes: list[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == "api" and not isinstance(node.ctx, ast.Load)
        for node in nodes
    )


def _arguments(node: ast.Call) -> Iterator[str]:
    match node.func:
        case ast.Attribute(value=ast.Name(id="api"), attr=attr) if attr in _CALLS:
            name = _CALLS[attr]
        case _:
            return
    if any(isinstance(item, ast.Starred) for item in node.args) or any(k.arg is None for k in node.keywords):
        return
    extra = [keyword.arg for keyword in node.keywords if keyword.arg != name]
    if extra:
        yield f"line {node.lineno}: api.{attr} takes {name} and nothing else, not {extra[0]}"
    elif len(node.args) + len(node.keywords) != 1:
        given = len(node.args) + len(node.keywords)
        yield f"line {node.lineno}: api.{attr} takes one argument, {name}, and is given {given}"


def import_notices(tree: ast.Module) -> Iterator[str]:
    """Imports that will fail or be of no use where the program runs."""
    for node in ast.walk(tree):
        for name in _imported(node):
            root = name.partition(".")[0]
            line = f"line {getattr(node, 'lineno', 0)}: import of {root}: "
            if root in _HOST:
                yield line + "the host's own packages are not there where programs run"
            elif root in _NO_USE:
                yield line + f"there is {_NO_USE[root]} where programs run"
            elif root not in sys.stdlib_module_names:
                yield line + "programs have the standard library only; code for api.execute has more"


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str() as name, level=0):
            yield name
        case ast.Call(
            func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str() as name), *_],
        ):
            yield name
        case _:
            return
