"""Which parts of a program can run at all, read off its syntax tree.

Errs towards "can run": a function counts as called as soon as its name is read anywhere in live code, and a
program that looks names up at run time is live as a whole. Must not know what is searched for in it.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Final

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_DYNAMIC: Final = frozenset({"eval", "exec", "globals", "locals", "vars", "getattr", "compile", "__import__"})


def live_nodes(tree: ast.Module) -> list[ast.AST]:
    """Every node that may be evaluated when the module is loaded and `run` is called."""
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.Name) and node.id in _DYNAMIC for node in nodes):
        return nodes
    return _Walk(nodes).collect(tree)


class _Walk:
    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._functions = [node for node in nodes if isinstance(node, _Function)]
        self._found: list[ast.AST] = []
        self._read: set[str] = {"run"}

    def collect(self, tree: ast.Module) -> list[ast.AST]:
        self._statements(tree.body)
        waiting, met = self._functions, True
        while met:
            met = [function for function in waiting if self._called(function)]
            waiting = [function for function in waiting if function not in met]
            for function in met:
                self._statements(function.body)
        return self._found

    def _called(self, function: _Function) -> bool:
        magic = function.name.startswith("__") and function.name.endswith("__")
        return magic or bool(function.decorator_list) or function.name in self._read

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in live_statements(body):
            self._node(statement)

    def _node(self, start: ast.AST) -> None:
        stack = [start]
        while stack:
            node = stack.pop()
            self._found.append(node)
            if isinstance(node, ast.Name):
                self._read.add(node.id)
            elif isinstance(node, ast.Attribute):
                self._read.add(node.attr)
            skipped = {"body"} if isinstance(node, _Function) else frozenset[str]()
            for name, value in ast.iter_fields(node):
                if name not in skipped:
                    stack += _children(node, name, value)


def _children(node: ast.AST, name: str, value: object) -> Iterator[ast.AST]:
    """The live ones among a field's nodes."""
    if isinstance(node, ast.If | ast.While) and name in ("body", "orelse"):
        truth = _truth(node.test)
        # A loop that never ends by its test has no use for its else part.
        if truth is (name == "orelse") and truth is not None:
            return
    if isinstance(value, ast.AST):
        yield value
    elif isinstance(value, list):
        items = [item for item in value if isinstance(item, ast.AST)]  # pyright: ignore[reportUnknownVariableType]
        statements = [item for item in items if isinstance(item, ast.stmt)]
        yield from live_statements(statements) if statements else items


def live_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of one block up to the first that never lets control pass on."""
    for statement in body:
        yield statement
        if _ends(statement):
            return


def _ends(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    if isinstance(statement, ast.If):
        if _truth(statement.test) is True:
            return any(_ends(inner) for inner in statement.body)
        return bool(statement.orelse) and all(
            any(_ends(inner) for inner in part) for part in (statement.body, statement.orelse)
        )
    return isinstance(statement, ast.While) and _truth(statement.test) is True and not _breaks(statement.body)


def _breaks(body: Sequence[ast.stmt]) -> bool:
    """Whether a `break` may belong to the loop with this body."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Break):
            return True
        if isinstance(node, ast.While | ast.For | ast.AsyncFor):
            stack += node.orelse
        elif not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            stack += ast.iter_child_nodes(node)
    return False


def _truth(test: ast.expr) -> bool | None:
    """What a constant condition is; None for any other."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand)
        return None if inner is None else not inner
    return bool(test.value) if isinstance(test, ast.Constant) else None
