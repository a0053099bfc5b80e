"""Known ineffective patterns of programs, found in the syntax tree alone (PROP-07).

Each generator yields one line per finding. `refusals` leave a program no effect at all; `notices` name parts
that probably have none, for the rest of the program may still have one. Must not know a release.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Any, Final

from harness_lab.constants import Bindings
from harness_lab.reach import live_nodes

_PURE: Final = frozenset(
    ("replace", "strip", "lstrip", "rstrip", "format", "join", "upper", "lower", "title", "capitalize")
)
"""Methods of texts that change nothing."""
_SUPPLIED: Final = frozenset(
    ["prompt", "family", "subtask", "files", "system", "budgets", "options", "answer_format", "inventory"]
)
"""The keys of `task` that the host always gives."""


def refusals(tree: ast.Module) -> Iterator[str]:
    """Why nothing of this program can reach the model, or nothing of the model can reach the answer."""
    everything, live = list(ast.walk(tree)), live_nodes(tree)
    for method, effect in (
        ("generate", "so nothing reaches the model"),
        ("submit", "so it can give no answer"),
    ):
        places = _places(everything, method)
        if not places:
            yield f"the program never calls api.{method}, {effect}"
        elif not _places(live, method):
            yield f"api.{method} in line {places[0]} can never be reached, {effect}"
    calls = _calls(live, "generate")
    if len(calls) == len(_places(live, "generate")) > 0:
        yield from _sends_nothing(calls)
        yield from _throws_away(live, calls)
    yield from _constant_answers(tree, live)


def notices(tree: ast.Module) -> Iterator[str]:
    """Parts that probably do nothing, one line each."""
    live = live_nodes(tree)
    yield from _unread_texts(tree, live)
    yield from _dead_defaults(live)
    yield from _lost_results(live)
    yield from _own_budgets(live)


def _places(nodes: Sequence[ast.AST], method: str) -> list[int]:
    """Lines that read `x.method`; an alias or a helper is enough."""
    return sorted(node.lineno for node in nodes if isinstance(node, ast.Attribute) and node.attr == method)


def _calls(nodes: Sequence[ast.AST], method: str) -> list[ast.Call]:
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _sends_nothing(calls: Sequence[ast.Call]) -> Iterator[str]:
    if all(
        len(values := _values(call)) == 1 and isinstance(values[0], ast.List) and not values[0].elts
        for call in calls
    ):
        yield f"api.generate([]) in line {calls[0].lineno} sends no message, so nothing reaches the model"


def _throws_away(live: Sequence[ast.AST], calls: Sequence[ast.Call]) -> Iterator[str]:
    alone = {id(node.value) for node in live if isinstance(node, ast.Expr)}
    if all(id(call) in alone for call in calls):
        yield (
            f"the text of api.generate in line {calls[0].lineno} is thrown away, "
            "so the model cannot change the answer"
        )


def _constant_answers(tree: ast.Module, live: Sequence[ast.AST]) -> Iterator[str]:
    """Every submission is fixed, or drawn at random, whatever the model says."""
    calls, bindings = _calls(live, "submit"), Bindings(tree)
    if len(calls) < len(_places(live, "submit")):
        return
    if calls and all(_values(call) and all(map(bindings.is_fixed, _values(call))) for call in calls):
        yield (
            f"every submitted answer is a constant or drawn at random (line {calls[0].lineno}), "
            "so the model's answer is never used"
        )


def _unread_texts(tree: ast.Module, live: Sequence[ast.AST]) -> Iterator[str]:
    """Names that get a text and are never read, or only where another such name gets its text."""
    texts = Bindings(tree).texts()
    dead: set[str] = set()
    while True:
        inside = {id(inner) for name in dead for value in texts[name][1] for inner in ast.walk(value)}
        read = {
            node.id
            for node in live
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
        }
        found = texts.keys() - read
        if found == dead:
            break
        dead = set(found)
    for name in sorted(dead, key=lambda name: texts[name][0]):
        yield f"line {texts[name][0]}: the text constant {name} is never read, so it never reaches the model"


def _dead_defaults(live: Sequence[ast.AST]) -> Iterator[str]:
    """What would be used if a key of `task` were missing: the host always supplies it (T01)."""
    for node in live:
        key = None
        if isinstance(node, ast.Call) and len(node.args) == 2 and not _empty(node.args[1]):
            key = _called_key(node, ("get", "setdefault", "pop"))
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            key = _read_key(node.values[0])
        elif isinstance(node, ast.IfExp | ast.If):
            key = _tested_key(node.test)
        if key is not None:
            line = getattr(node, "lineno", 0)
            yield f'line {line}: what stands in for a missing task["{key}"] is dead: it is always there'


def _called_key(node: ast.Call, methods: tuple[str, ...]) -> str | None:
    named = isinstance(node.func, ast.Attribute) and node.func.attr in methods
    return _task_key(node.func.value, node.args[0]) if named and node.args else None  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


def _read_key(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call):
        return _called_key(node, ("get",))
    return _task_key(node.value, node.slice) if isinstance(node, ast.Subscript) else None


def _tested_key(test: ast.expr) -> str | None:
    """`"system" in task`, `not task.get("system")`: one branch of these is dead."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In | ast.NotIn):
        return _task_key(test.comparators[0], test.left)
    key = _read_key(test)
    return key if key in ("system", "prompt") else None


def _task_key(owner: ast.expr, key: ast.expr) -> str | None:
    """A supplied key's name, of the dictionary `task`. Lists may be empty, so `options or X` is alive."""
    known = isinstance(key, ast.Constant) and key.value in _SUPPLIED - {"files", "options"}
    return str(key.value) if known and isinstance(owner, ast.Name) and owner.id == "task" else None  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


def _empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("", None)


def _lost_results(live: Sequence[ast.AST]) -> Iterator[str]:
    """Statements that compute something and keep it nowhere."""
    for node in live:
        if not isinstance(node, ast.Expr):
            continue
        value: Any = node.value
        pure = (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in _PURE
            and not _on_module(value.func)
        )
        if pure or isinstance(value, ast.BinOp | ast.JoinedStr | ast.Compare | ast.List | ast.Dict):
            yield f"line {node.lineno}: the result is thrown away, so this statement does nothing"


def _on_module(function: ast.Attribute) -> bool:
    # os.replace and the like do something.
    return isinstance(function.value, ast.Name) and function.value.id in ("os", "shutil", "Path")


def _own_budgets(live: Sequence[ast.AST]) -> Iterator[str]:
    for node in live:
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Store):
            continue
        inner: ast.expr = node
        while isinstance(inner, ast.Subscript):
            if _task_key(inner.value, inner.slice) == "budgets":
                yield f'line {node.lineno}: budgets are the host\'s; writing to task["budgets"] changes none'
            inner = inner.value
