"""Known ineffective patterns of programs, found in the syntax tree alone (PROP-07)."""

import ast
from collections.abc import Iterator


def never_calls(tree: ast.Module, method: str, problem: str) -> Iterator[str]:
    """The problem, unless some `x.method` is read anywhere (an alias or a helper is enough)."""
    if not any(isinstance(node, ast.Attribute) and node.attr == method for node in ast.walk(tree)):
        yield problem


def only_constant_answers(tree: ast.Module) -> Iterator[str]:
    """A program whose every submission is the same fixed text whatever the model says."""
    submissions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "submit"
    ]
    if submissions and all(_constant(node, tree) for node in submissions):
        yield "every submitted answer is a constant, so the model's answer is never used"


def _constant(call: ast.Call, tree: ast.Module) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(values) and all(_is_fixed(value, _module_constants(tree)) for value in values)


def _is_fixed(value: ast.expr, constants: dict[str, ast.stmt]) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Name):
        return value.id in constants
    if isinstance(value, ast.JoinedStr):
        return all(isinstance(part, ast.Constant) for part in value.values)
    return isinstance(value, ast.BinOp) and all(
        _is_fixed(side, constants) for side in (value.left, value.right)
    )


def _module_constants(tree: ast.Module) -> dict[str, ast.stmt]:
    """Names that are assigned a text literal at top level, annotated or not."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if isinstance(value, ast.Constant | ast.JoinedStr | ast.BinOp) and not _is_number(value):
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not isinstance(value.value, str)


def dead_constants(tree: ast.Module) -> Iterator[str]:
    """Text constants that nothing reads: they cannot reach the model."""
    read = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for name in sorted(_module_constants(tree).keys() - read - {"__doc__"}):
        yield f"the text constant {name} is never read, so it never reaches the model"


def dead_defaults(tree: ast.Module) -> Iterator[str]:
    """`task.get("system", X)` and `task["system"] or X`: the host always supplies the key."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and _is_get_system(node)
            and len(node.args) == 2
            and not _is_empty(node.args[1])
        ):
            yield f'line {node.lineno}: the default of task.get("system", ...) is dead: it is always there'
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _reads_system(node.values[0]):
            yield f'line {node.lineno}: what follows task["system"] or ... is dead: it is always there'


def _is_get_system(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == "system"
    )


def _reads_system(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _is_get_system(node)
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "system"
    )


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("", None)
