"""What names of a program are bound to, where that can be read off its syntax tree.

Must not know what the program is for.
"""

import ast
from collections.abc import Iterator
from typing import Final

_RANDOM: Final = frozenset({"choice", "choices", "sample", "randint", "randrange", "random", "shuffle"})
_TEXT_METHODS: Final = frozenset({"format", "strip", "upper", "lower", "join", "title"})


class Bindings:
    """The values that plain assignments of a program give to names."""

    def __init__(self, tree: ast.Module) -> None:
        self._values: dict[str, list[tuple[int, ast.expr]]] = {}
        self._otherwise: set[str] = set()
        """Names that also get a value in another way: loops, parameters, unpacking."""
        plain: set[int] = set()
        for node in ast.walk(tree):
            for target, value in _assigned(node):
                plain.add(id(target))
                self._values.setdefault(target.id, []).append((target.lineno, value))
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in plain:
                self._otherwise.add(node.id)
            elif isinstance(node, ast.arg):
                self._otherwise.add(node.arg)

    def is_fixed(self, value: ast.expr, open_names: frozenset[str] = frozenset()) -> bool:
        """Whether the value rests on constants, a fixed option and chance alone."""
        match value:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return self._is_fixed_name(name, open_names)
            case ast.Subscript(
                value=ast.Subscript(value=ast.Name(id="task"), slice=ast.Constant(value="options")),
                slice=place,
            ):
                return self.is_fixed(place, open_names)
            case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=given):
                chance = attr in _RANDOM and isinstance(owner, ast.Name) and owner.id == "random"
                text = attr in _TEXT_METHODS and self.is_fixed(owner, open_names)
                return (chance or text) and all(self.is_fixed(item, open_names) for item in given)
            case (
                ast.JoinedStr()
                | ast.FormattedValue()
                | ast.BinOp()
                | ast.List()
                | ast.Tuple()
                | ast.Subscript()
            ):
                parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
                return all(self.is_fixed(part, open_names) for part in parts)
            case _:
                return False

    def _is_fixed_name(self, name: str, open_names: frozenset[str]) -> bool:
        found = self._values.get(name)
        if not found or name in self._otherwise or name in open_names:
            return False
        return all(self.is_fixed(value, open_names | {name}) for _, value in found)

    def texts(self) -> dict[str, tuple[int, list[ast.expr]]]:
        """Names that only ever get texts, or lists and dictionaries of texts: first line and values."""
        return {
            name: (found[0][0], [value for _, value in found])
            for name, found in self._values.items()
            if name not in self._otherwise
            and not name.startswith("__")
            and all(_is_text(value) for _, value in found)
        }


def _assigned(node: ast.AST) -> Iterator[tuple[ast.Name, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
            yield target, value
        case ast.AugAssign(target=ast.Name() as target, value=value):
            yield target, value
        case ast.NamedExpr(target=target, value=value):
            yield target, value
        case _:
            return


def _is_text(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=str()):
            return True
        case ast.JoinedStr():
            return True
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _is_text(left) or _is_text(right)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Dict(values=items):
            return all(_is_text(item) for item in items) and any(map(_is_prose, items))
        case _:
            return False


def _is_prose(value: ast.expr) -> bool:
    # A list of single words is as often a list of names.
    return not isinstance(value, ast.Constant) or " " in str(value.value)
