"""Frames between the host and a sandbox: four bytes of length (big endian), then one JSON object in UTF-8.

The first of the four bytes is 0, or `PASSED_ON` in a frame of the program's, which process 1 hands to the
host unread. Process 1 writes that byte itself, so nothing that a program writes passes for process 1's word.

Strict in both directions: at most 1 MiB, no NaN or infinity, no duplicate key, no lone surrogate, no nesting
past 32 levels, no number of more than 400 characters. What comes from a sandbox is hostile, so it may neither
unfold nor keep its reader busy: the number of values and the size of the text in memory are limited too, and
are found out before anything is built. Used by the host and inside the sandbox, so: standard library only.
Must not know what the frames mean.

`_json` is the C half of the package `json`. The other half imports regular expressions and enums, 10 ms of
CPU in each sandbox and each episode has two; the modules that run inside avoid both.
"""

from __future__ import annotations

import os
from _json import encode_basestring, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

# Bound now: tool code, which shares its process with a reader and a writer, may replace them.
_read, _write = os.read, os.write

MAX_FRAME = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 8_192
"""Commas and opening brackets in a frame from a sandbox: a MiB of `{}` would unfold to 25 MiB in 0.3 s."""
HOST_VALUES = 1 << 18
"""The same in a frame from the host, whose task may hold the inventory of a large lake."""
MAX_MEMORY = 9 << 18
"""Bytes of the text in memory, where one character past U+FFFF makes every other one four bytes wide."""
MAX_NUMBER = 400
"""Characters of a number: the time to read one grows with the square of its length."""
HEADER = 4
_READ = 1 << 13
"""Bytes at once: more than most frames have, and little to ask of a process whose memory is used up."""
PASSED_ON = 1
PING = b'{"op":"ping"}'
"""Payload of the one frame that process 1 answers by itself, whatever runs there: `{"op":"pong"}`."""


_INFINITY = float("inf")
_PLAIN = {str, float, bool, type(None)}
"""Types whose values are looked at by the C encoder alone."""
_INTEGERS = 10**MAX_NUMBER
"""The first one too long; with a minus sign, a tenth of it is."""


class ProtocolError(ValueError):
    """A frame that the protocol refuses. The message says which rule it broke."""


def _refuse_constant(name: str) -> NoReturn:
    raise ProtocolError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProtocolError("duplicate key")
    return result


def _read_integer(text: str) -> int:
    if len(text) > MAX_NUMBER:
        raise ProtocolError(f"number of more than {MAX_NUMBER} characters")
    return int(text)


def _read_float(text: str) -> float:
    value = float(text) if len(text) <= MAX_NUMBER else _INFINITY
    if value - value != 0:  # 1e999 is infinite without saying so
        raise ProtocolError(f"number out of range, or of more than {MAX_NUMBER} characters")
    return value


def _check_depth(value: Any, room: int = MAX_DEPTH) -> None:
    """Of a dictionary or list as it came from JSON."""
    if not room and value:
        raise ProtocolError(f"nested deeper than {MAX_DEPTH}")
    items: Any = value.values() if type(value) is dict else value  # pyright: ignore[reportUnknownVariableType]
    for item in items:
        if type(item) is dict or type(item) is list:
            _check_depth(item, room - 1)


def _check_form(value: Any, room: int = MAX_DEPTH) -> None:
    """Depth, and what the C encoder writes although no reader takes it."""
    if room < 0:
        raise ProtocolError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            if type(key) is not str:  # pyright: ignore[reportUnknownArgumentType]
                _check_keys(value)  # pyright: ignore[reportUnknownArgumentType]
            # Most are plain, and a call costs more than all else here.
            if type(item) not in _PLAIN or not room:  # pyright: ignore[reportUnknownArgumentType]
                _check_form(item, room - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            if type(item) not in _PLAIN or not room:  # pyright: ignore[reportUnknownArgumentType]
                _check_form(item, room - 1)
    elif isinstance(value, int) and not -_INTEGERS // 10 < value < _INTEGERS:
        raise ProtocolError(f"number of more than {MAX_NUMBER} characters")


def _check_keys(value: dict[Any, Any]) -> None:
    if len({_to_json({key: 0}) for key in value}) < len(value):
        raise ProtocolError("duplicate key")


def _check_values(payload: bytes, limit: int) -> None:
    """Count outside of strings, in a few passes of C over the bytes."""
    if len(payload) <= limit:
        return
    if payload.count(b",") + payload.count(b"[") + payload.count(b"{") <= limit:
        return  # strings counted, too
    if b"\\" in payload:  # then quotes inside of strings go first, so that the others delimit them
        payload = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    if payload.count(b'"') <= 4 * limit:
        outside = b"".join(payload.split(b'"')[::2])
        if outside.count(b",") + outside.count(b"[") + outside.count(b"{") <= limit:
            return
    raise ProtocolError(f"more than {limit} values")


def _check_memory(text: str, wide: bool = False) -> None:
    size = 4 * len(text) if wide else text.__sizeof__()
    if size > MAX_MEMORY:
        raise ProtocolError(f"text of {size} bytes in memory; the limit is {MAX_MEMORY}")


def _refuse_type(value: object) -> NoReturn:
    raise ProtocolError(f"{type(value).__name__} has no form in JSON")


class _Rules:
    """What the scanner reads its options from."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_unique)
    parse_float = staticmethod(_read_float)
    parse_int = staticmethod(_read_integer)
    parse_constant = staticmethod(_refuse_constant)


_scan = make_scanner(_Rules())  # pyright: ignore[reportArgumentType]
# No memory of visited containers is kept (None): `_check_form` runs first and stops at a cycle.
_chunks = make_encoder(None, _refuse_type, encode_basestring, None, ":", ",", False, False, False)


def _to_json(value: object) -> str:
    return "".join(_chunks(value, 0))


def _from_json(text: str) -> object:
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ProtocolError("not JSON") from None
    if end != len(text):
        raise ProtocolError("something follows the object")
    return value


def encode(frame: Mapping[str, Any], values: int = MAX_VALUES) -> bytes:
    """The bytes of one frame, header included. Raises ProtocolError for anything `decode` would refuse."""
    try:
        _check_form(frame)
        text = _to_json(frame)
        payload = text.encode()
    except UnicodeEncodeError:
        raise ProtocolError("text holds a lone surrogate") from None
    except (TypeError, ValueError) as error:
        raise ProtocolError(str(error)) from None
    if len(payload) > MAX_FRAME:
        raise ProtocolError(f"frame of {len(payload)} bytes; the limit is {MAX_FRAME}")
    _check_memory(text)
    _check_values(payload, values)
    return framed(payload)


def framed(payload: bytes, mark: int = 0) -> bytes:
    """A payload of legal length with its header."""
    return ((mark << 24) + len(payload)).to_bytes(HEADER, "big") + payload


def decode(payload: bytes, values: int = MAX_VALUES) -> dict[str, Any]:
    """One frame's payload. Raises ProtocolError."""
    _check_values(payload, values)
    # `encode` escapes control characters only; any other escape may be a surrogate, or widen the text.
    escaped = b"\\" in payload and payload.count(b"\\u") != payload.count(b"\\u00")
    try:
        text = payload.decode()
        _check_memory(text, wide=escaped)
        value = _from_json(text)
        if escaped:
            _to_json(value).encode()
    except UnicodeError:
        raise ProtocolError("not strict UTF-8 text") from None
    except RecursionError:
        raise ProtocolError(f"nested deeper than {MAX_DEPTH}") from None
    except (ValueError, SystemError) as error:  # Python 3.11's `_json` cannot name its error by itself
        raise ProtocolError(str(error)) from None
    if not isinstance(value, dict):
        raise ProtocolError("not an object")
    if payload.count(b"{") + payload.count(b"[") > MAX_DEPTH:  # else it cannot be
        _check_depth(value)
    return value  # pyright: ignore[reportUnknownVariableType]


def payload_length(header: bytes | bytearray) -> int:
    """The length that a header announces. Raises ProtocolError past the limit."""
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME:
        raise ProtocolError(f"frame of {length} bytes; the limit is {MAX_FRAME}")
    return length


class Feed:
    """Turns a stream of bytes into frames; keeps what is not complete yet."""

    def __init__(self, values: int = MAX_VALUES) -> None:
        self._pending = bytearray()
        self._values = values

    def add(self, data: bytes) -> list[dict[str, Any]]:
        """The frames that `data` completes. Raises ProtocolError at the first bad one."""
        return [decode(payload, self._values) for payload in self.payloads(data)]

    def payloads(self, data: bytes) -> list[bytes]:
        """The same unread. Raises ProtocolError at the first that is too long."""
        pending = self._pending
        if not pending and int.from_bytes(data[:HEADER], "big") + HEADER == len(data) <= MAX_FRAME:
            return [data[HEADER:]]  # nearly always
        pending += data
        found: list[bytes] = []
        while len(pending) >= HEADER:
            end = HEADER + payload_length(bytes(pending[:HEADER]))
            if len(pending) < end:
                break
            found.append(bytes(pending[HEADER:end]))
            del pending[:end]
        return found


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte to a blocking descriptor. OSError passes through."""
    written = _write(descriptor, data)
    while written < len(data):
        written += _write(descriptor, memoryview(data)[written:])


class Reader:
    """Reads the host's frames from a blocking descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._feed = Feed()
        self._payloads: list[bytes] = []

    def read(self) -> dict[str, Any]:
        """Wait for one frame. EOFError at the descriptor's end, ProtocolError for a bad frame."""
        while not self._payloads:
            data = _read(self._descriptor, _READ)
            if not data:
                raise EOFError
            self._payloads = self._feed.payloads(data)
        return decode(self._payloads.pop(0), HOST_VALUES)
