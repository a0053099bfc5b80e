"""The texts that a program's constant expressions stand for, computed on the syntax tree (EVID-06).

`"dbqa-" + "aaaa"`, f-strings, joins of lists, hexadecimal, base64, reversal, `chr` and the like are folded; a
name counts as constant when all that is ever assigned to it is. Nothing of the program is executed: each
operation is one of a closed list, applied to bounded values, and the number of steps is bounded. Must not
know what is looked for in the texts.
"""

import ast
import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

LONGEST: Final = 1 << 16
"""Characters of one folded value."""
_MOST_ITEMS: Final = 4096
_TOTAL: Final = 1 << 22
"""Characters and items of all values together, those on the way included."""
_STEPS: Final = 100_000
_DEPTH: Final = 80
_JOINTS: Final = ("", " ", "-", "_")
_CODECS: Final = frozenset(
    {"rot13", "rot_13", "hex", "base64", "utf-8", "utf8", "ascii", "latin-1", "utf-16"}
)
_PLAIN_FORMAT: Final = re.compile(r"(?:[^{}]|\{\{|\}\}|\{\d?\})*")
_PLAIN_PERCENT: Final = re.compile(r"(?:[^%]|%[%sdirc])*")

Value = str | bytes | int | tuple[Any, ...]


class _Unknown(Exception):
    """The expression is not constant, or too large to be folded."""


def folded_texts(tree: ast.AST) -> dict[str, int]:
    """Every text that a largest constant expression of the tree gives, and the first line that does."""
    folder = _Folder(tree)
    found: dict[str, int] = {}
    stack: list[ast.AST] = [tree]
    while stack and folder.spent <= _TOTAL:
        node = stack.pop()
        named = isinstance(node, ast.Name) or not isinstance(node, ast.expr)
        value = None if named else folder.value(cast("ast.expr", node))
        if value is None:
            stack += ast.iter_child_nodes(node)
        for text in _texts(value):
            folder.spent += len(text)
            found.setdefault(text, getattr(node, "lineno", 0))
    for line, value in folder.built_up():
        found |= {text: line for text in _texts(value) if text not in found}
    return found


def _texts(value: Value | None) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, tuple):
        parts = [text for item in value for text in _texts(item)]
        yield from parts
        if len(parts) > 1 and sum(map(len, parts)) < LONGEST:
            yield from (joint.join(parts) for joint in _JOINTS)


def decodings(text: str) -> Iterator[str]:
    """What a text gives when it is read as hexadecimal, base64, base32, rot13 or backwards, if printable."""
    if not 4 <= len(text) <= LONGEST:
        return
    yield text[::-1]
    yield codecs.encode(text, "rot13")
    packed = "".join(text.split())
    readers: tuple[tuple[str, Callable[[str], bytes]], ...] = (
        (r"(?:[0-9a-fA-F]{2}){4,}", bytes.fromhex),
        (r"[A-Za-z0-9+/]{6,}={0,2}", lambda given: base64.b64decode(given + "=" * (-len(given) % 4))),
        (r"[A-Za-z0-9_-]{6,}={0,2}", lambda given: base64.urlsafe_b64decode(given + "=" * (-len(given) % 4))),
        (r"[A-Z2-7]{8,}={0,6}", base64.b32decode),
    )
    for pattern, read in readers:
        if re.fullmatch(pattern, packed):
            try:
                decoded = read(packed).decode()
            except (ValueError, binascii.Error):
                continue
            if "".join(decoded.split()).isprintable():
                yield decoded


class _Folder:
    """Folds the expressions of one tree; each node once."""

    def __init__(self, tree: ast.AST) -> None:
        self._steps = self.spent = 0
        self._known: dict[int, Value | None] = {}
        self._names = _assignments(tree)
        self._kept: list[ast.Name] = []
        """Nodes made here: values are known by the identity of their nodes, so these must live as long."""
        self._open: set[str] = set()
        self._bound: dict[str, Value] = {}
        """Loop variables of the comprehensions that are being folded."""

    def value(self, node: ast.expr, depth: int = 0) -> Value | None:
        """The value, or None when it is not constant."""
        if id(node) in self._known and not self._bound:
            return self._known[id(node)]
        self._steps += 1
        if self._steps > _STEPS or depth > _DEPTH or self.spent > _TOTAL:
            return None
        try:
            found = self._fold(node, depth + 1)
            self.spent += _size(found)
        except (_Unknown, ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
            found = None
        if not self._bound:
            self._known[id(node)] = found
        return found

    def built_up(self) -> Iterator[tuple[int, Value | None]]:
        """What is put together by several assignments to one name, and the line of the first."""
        for name, values in self._names.items():
            if len(values) > 1:
                load = ast.Name(id=name, ctx=ast.Load())
                self._kept.append(load)
                yield values[0].lineno, self.value(load)

    def _of(self, node: ast.expr, depth: int) -> Value:
        found = self.value(node, depth)
        if found is None:
            raise _Unknown
        return found

    def _fold(self, node: ast.expr, depth: int) -> Value:
        match node:
            case ast.Constant(value=str() | bytes() | int() as constant):
                return constant
            case ast.Name(id=name):
                return self._name(name, depth)
            case ast.JoinedStr(values=parts):
                return "".join(str(self._of(part, depth)) for part in parts)
            case ast.FormattedValue(value=inner, format_spec=None, conversion=-1 | 115):
                return self._of(inner, depth)
            case ast.BinOp(op=ast.Add()):
                return self._sum(node, depth)
            case ast.BinOp(left=left, op=op, right=right):
                return _operation(op, self._of(left, depth), self._of(right, depth))
            case ast.ListComp(elt=item, generators=[loop]) | ast.GeneratorExp(elt=item, generators=[loop]):
                return self._each(item, loop, depth)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return tuple(self._of(item, depth) for item in items)
            case ast.Dict(values=items):
                return tuple(self._of(item, depth) for item in items)
            case ast.Subscript(value=inner, slice=place):
                return self._part(self._of(inner, depth), place, depth)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -cast("int", self._of(inner, depth))
            case ast.Call(func=function, args=given, keywords=[]):
                return self._call(function, given, depth)
            case _:
                raise _Unknown

    def _sum(self, node: ast.expr, depth: int) -> Value:
        """A chain of additions, read without recursion: it may be as long as the program."""
        parts: list[Value] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts.append(self._of(node.right, depth))
            node = node.left
        parts.append(self._of(node, depth))
        return _added(parts[::-1])

    def _each(self, item: ast.expr, loop: ast.comprehension, depth: int) -> Value:
        """A comprehension over constant items, without conditions."""
        if loop.ifs or not isinstance(loop.target, ast.Name) or loop.target.id in self._bound:
            raise _Unknown
        found: list[Value] = []
        name = loop.target.id
        for value in _items(self._of(loop.iter, depth)):
            self._bound[name] = value
            try:
                found.append(self._of(item, depth))
            finally:
                del self._bound[name]
        return tuple(found)

    def _name(self, name: str, depth: int) -> Value:
        """All that was ever assigned to it, one after another: a text that is built up in several places."""
        if name in self._bound:
            return self._bound[name]
        if name in self._open or not self._names.get(name):
            raise _Unknown
        self._open.add(name)
        try:
            values = [self._of(node, depth) for node in self._names[name]]
        finally:
            self._open.discard(name)
        return _added(values)

    def _part(self, value: Value, place: ast.expr, depth: int) -> Value:
        if isinstance(value, int):
            raise _Unknown
        if not isinstance(place, ast.Slice):
            return value[cast("int", self._of(place, depth))]
        bounds = [
            None if bound is None else cast("int", self._of(bound, depth))
            for bound in (place.lower, place.upper, place.step)
        ]
        return value[slice(*bounds)]

    def _call(self, function: ast.expr, given: Sequence[ast.expr], depth: int) -> Value:
        if isinstance(function, ast.Name) and function.id == "map" and len(given) == 2:
            mapped = getattr(given[0], "id", "")
            return tuple(_FUNCTIONS[mapped](item) for item in _items(self._of(given[1], depth)))
        values = [self._of(argument, depth) for argument in given]
        if isinstance(function, ast.Name):
            return _FUNCTIONS[function.id](*values)
        if not isinstance(function, ast.Attribute):
            raise _Unknown
        if function.attr in _FUNCTIONS and self.value(function.value, depth) is None:
            return _FUNCTIONS[function.attr](*values)  # base64.b64decode, bytes.fromhex
        return _method(self._of(function.value, depth), function.attr, values)


def _assignments(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """The values of each name that gets values by plain assignment alone; an empty list for any other."""
    values: dict[str, list[ast.expr]] = {}
    stores: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stores[node.id] = stores.get(node.id, 0) + 1
        elif isinstance(node, ast.arg):
            stores[node.arg] = stores.get(node.arg, 0) + 2
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = [node.target]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                values.setdefault(target.id, []).append(value)
    return {name: found if stores.get(name) == len(found) else [] for name, found in values.items()}


def _size(value: Value) -> int:
    """Of one value with all that is in it. Raises _Unknown past the limits."""
    if isinstance(value, int):
        size = value.bit_length() // 8
    elif isinstance(value, tuple):
        if len(value) > _MOST_ITEMS:
            raise _Unknown
        size = sum(1 + _size(item) for item in value)
    else:
        size = len(value)
    if size > LONGEST:
        raise _Unknown
    return size


def _items(value: Value) -> tuple[Any, ...]:
    if isinstance(value, int):
        raise _Unknown
    return tuple(value)


def _added(values: Sequence[Any]) -> Value:
    """The values one after another: texts, bytes or lists of one kind, or numbers."""
    first = values[0]
    if not isinstance(first, int) and sum(map(len, values)) > LONGEST:
        raise _Unknown
    if isinstance(first, str):
        return "".join(values)
    if isinstance(first, bytes):
        return b"".join(values)
    if isinstance(first, tuple):
        return tuple(item for value in values for item in value)
    return sum(values)


def _operation(op: ast.operator, left: Any, right: Any) -> Value:
    match op:
        case ast.Sub() if isinstance(left, int) and isinstance(right, int):
            return left - right
        case ast.BitXor() if isinstance(left, int) and isinstance(right, int):
            return left ^ right
        case ast.Mult() if isinstance(right, int) and not isinstance(left, int):
            if right * len(left) > LONGEST:
                raise _Unknown
            return left * right
        case ast.Mod() if isinstance(left, str) and _PLAIN_PERCENT.fullmatch(left):
            return left % right
        case _:
            raise _Unknown


def _method(value: Any, name: str, given: Sequence[Any]) -> Value:
    """One method of a text or of bytes, out of those whose result is bounded by what goes in."""
    if name == "join":
        items = _items(given[0])
        if len(items) * len(value) > LONGEST:
            raise _Unknown
        return value.join(items)
    if name in ("encode", "decode"):
        # Some of Python's codecs take quadratic time.
        if any(codec not in _CODECS for codec in given):
            raise _Unknown
        return getattr(value, name)(*given)
    if name == "replace" and len(value) * (len(given[1]) + 1) <= LONGEST:
        return value.replace(*given[:2])
    if name == "format" and _PLAIN_FORMAT.fullmatch(value):
        return value.format(*given)
    if name in _METHODS:
        return getattr(value, name)(*given)
    if name == "split":
        return tuple(value.split(*given))
    raise _Unknown


_METHODS: Final = frozenset(
    ("lower", "upper", "strip", "lstrip", "rstrip", "title", "capitalize", "swapcase", "casefold")
) | {"removeprefix", "removesuffix", "hex"}


def _decode(value: Any, codec: str = "utf-8") -> Value:
    if codec not in _CODECS:
        raise _Unknown
    return cast("Value", codecs.decode(value, codec))


def _str(value: Value, codec: str = "utf-8") -> Value:
    if isinstance(value, tuple):
        raise _Unknown  # its items are looked at one by one
    return _decode(value, codec) if isinstance(value, bytes) else str(value)


def _bytes(items: Value) -> bytes:
    return bytes(_items(items))


def _sorted(items: Value) -> Value:
    return tuple(sorted(_items(items)))


def _backwards(items: Value) -> Value:
    return _items(items)[::-1]


_FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    "str": _str,
    "chr": chr,
    "ord": ord,
    "int": int,
    "bytes": _bytes,
    "bytearray": _bytes,
    "list": _items,
    "tuple": _items,
    "reversed": _backwards,
    "sorted": _sorted,
    "fromhex": bytes.fromhex,
    "unhexlify": binascii.unhexlify,
    "a2b_hex": binascii.unhexlify,
    "a2b_base64": binascii.a2b_base64,
    "b64decode": base64.b64decode,
    "urlsafe_b64decode": base64.urlsafe_b64decode,
    "standard_b64decode": base64.standard_b64decode,
    "b32decode": base64.b32decode,
    "b16decode": base64.b16decode,
    "b85decode": base64.b85decode,
    "a85decode": base64.a85decode,
    "decode": _decode,
}
