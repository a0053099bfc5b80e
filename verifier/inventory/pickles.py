"""What a pickle holds, told from its opcodes: nothing is imported, built or run.

A machine of stack and memo that keeps kinds, lengths and the first keys instead of values. Must not know
where a pickle comes from: it may be damaged, endless or hostile.
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

MOST_OPCODES: Final = 300_000
_KEYS: Final = 8
_SHOWN: Final = 40
_STRINGS: Final = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING"})
_MORE_STRINGS: Final = frozenset({"BINSTRING", "SHORT_BINSTRING"})
_PLAIN: Final = {
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), "int"),
    **dict.fromkeys(("FLOAT", "BINFLOAT"), "float"),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "NEXT_BUFFER"), "bytes"),
    **dict.fromkeys(("NEWTRUE", "NEWFALSE"), "bool"),
    "NONE": "None",
    "EMPTY_LIST": "list",
    "EMPTY_DICT": "dict",
    "EMPTY_TUPLE": "tuple",
    "EMPTY_SET": "set",
    "PERSID": "outside object",
    "EXT1": "registered object",
    "EXT2": "registered object",
    "EXT4": "registered object",
}
_HARMLESS: Final = frozenset(
    {"_codecs", "builtins", "collections", "copyreg", "datetime", "decimal", "numpy", "pandas", "pathlib"}
    | {"fractions", "scipy", "uuid", "_pickle", "functools", "array", "types", "enum"}
)
_CALLS: Final = frozenset({"eval", "exec", "compile", "open", "getattr", "__import__", "breakpoint", "input"})


@dataclass
class _Item:
    kind: str
    text: str = ""
    """Of a string; of a class, `module.name`."""
    length: int = 0
    keys: list[str] = field(default_factory=list[str])


class _Mark(_Item):
    def __init__(self) -> None:
        super().__init__("mark")


class _Machine:
    """Follows opcodes; an operation that finds too little on the stack raises IndexError."""

    def __init__(self) -> None:
        self.stack: list[_Item] = []
        self.unsafe: list[str] = []
        self._memo: dict[int, _Item] = {}
        self._special: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self.stack.append(_Mark()),
            "POP": lambda _: self._drop(),
            "POP_MARK": lambda _: self._discard(),
            "DUP": lambda _: self.stack.append(self.stack[-1]),
            "APPEND": lambda _: self._extend([self.stack.pop()]),
            "APPENDS": lambda _: self._extend(self._above()),
            "ADDITEMS": lambda _: self._extend(self._above()),
            "SETITEM": lambda _: self._update([self.stack.pop(), self.stack.pop()][::-1]),
            "SETITEMS": lambda _: self._update(self._above()),
            "BUILD": lambda _: self._discard_one(),
            "STACK_GLOBAL": lambda _: self._global(self.stack.pop(), self.stack.pop()),
            "GLOBAL": lambda argument: self._named(str(argument).replace(" ", ".", 1)),
            "REDUCE": lambda _: self._made(2),
            "NEWOBJ": lambda _: self._made(2),
            "NEWOBJ_EX": lambda _: self._made(3),
            "OBJ": lambda _: self._object(self._above()),
            "INST": lambda argument: self._instance(str(argument).replace(" ", ".", 1)),
            "BINPERSID": lambda _: self._replace("outside object"),
        }

    def step(self, name: str, argument: object) -> None:
        if name in self._special:
            self._special[name](argument)
        elif name in _PLAIN:
            self.stack.append(_Item(_PLAIN[name]))
        elif name in _STRINGS or name in _MORE_STRINGS:
            self.stack.append(_Item("str", str(argument)[: 4 * _SHOWN]))
        elif name in ("TUPLE", "LIST", "FROZENSET"):
            self.stack.append(_Item(name.lower(), length=len(self._above())))
        elif name == "DICT":
            pairs = self._above()
            self.stack.append(_Item("dict"))
            self._update(pairs)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            del self.stack[-int(name[-1]) :]
            self.stack.append(_Item("tuple", length=int(name[-1])))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[cast("int", argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo.get(cast("int", argument), _Item("unknown")))

    def _drop(self) -> None:
        self.stack.pop()

    def _discard(self) -> None:
        self._above()

    def _discard_one(self) -> None:
        self.stack.pop()

    def _above(self) -> list[_Item]:
        """Take everything above the last mark, and the mark."""
        for index in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[index], _Mark):
                taken = self.stack[index + 1 :]
                del self.stack[index:]
                return taken
        raise IndexError("no mark")

    def _extend(self, items: list[_Item]) -> None:
        target = self.stack[-1]
        target.length += len(items)
        target.keys += [item.text for item in items if item.kind == "str"][: _KEYS - len(target.keys)]

    def _update(self, items: list[_Item]) -> None:
        target = self.stack[-1]
        target.length += len(items) // 2
        target.keys += [item.text for item in items[::2] if item.kind == "str"][: _KEYS - len(target.keys)]

    def _global(self, name: _Item, module: _Item) -> None:
        self._named(f"{module.text}.{name.text}")

    def _named(self, name: str) -> None:
        module, _, attribute = name.rpartition(".")
        hostile = module.partition(".")[0] not in _HARMLESS or attribute in _CALLS
        if hostile and name not in self.unsafe:
            self.unsafe.append(name[: 2 * _SHOWN])
        self.stack.append(_Item("class", name))

    def _made(self, parts: int) -> None:
        taken = self.stack[-parts:]
        del self.stack[-parts:]
        self.stack.append(_Item("object", taken[0].text))

    def _object(self, taken: list[_Item]) -> None:
        self.stack.append(_Item("object", taken[0].text if taken else ""))

    def _instance(self, name: str) -> None:
        self._above()
        self._named(name)
        self.stack[-1].kind = "object"

    def _replace(self, kind: str) -> None:
        self.stack[-1] = _Item(kind)


def describe_pickle(head: bytes, complete: bool) -> str:
    """In words what the pickle in these bytes is. Never raises and never loads."""
    machine = _Machine()
    ended, damage = False, ""
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(head))):
            if opcode.name == "STOP":
                ended = True
                break
            if count >= MOST_OPCODES:
                break
            machine.step(opcode.name, argument)
    except Exception as error:  # genops and the machine meet arbitrary bytes; whatever they find is damage
        damage = "" if not complete else f"damaged: {type(error).__name__} {error}"[:120]
    top = next((item for item in machine.stack if not isinstance(item, _Mark)), None)
    if top is None or (damage and top.kind == "unknown"):
        return f"no Python pickle, {damage or 'nothing in it'}"
    parts = [f"Python pickle: {_said(top, ended)}"]
    if damage or not ended:
        parts.append(damage or "read to its first part")
    if machine.unsafe:
        parts.append(f"loading it would import {', '.join(machine.unsafe[:3])}")
    return "; ".join(parts)


def _said(item: _Item, ended: bool) -> str:
    if item.kind in ("object", "class"):
        kind = "an object of" if item.kind == "object" else "the name"
        return f"{kind} {item.text[: 2 * _SHOWN] or 'an unknown class'}"
    if item.kind not in ("list", "dict", "tuple", "set", "frozenset"):
        return f"a value of type {item.kind}"
    number = f"{'' if ended else 'at least '}{item.length} {'entry' if item.length == 1 else 'entries'}"
    named = "keys " if item.kind == "dict" else "such as "
    shown = ", ".join(repr(key[:_SHOWN]) for key in item.keys)
    return f"a {item.kind} of {number}" + (f", {named}{shown}" if shown else "")
