"""What runs between the grader and its process: frames of byte strings over a stream socket.

Bytes, not JSON, for a submitted text may hold what JSON cannot (lone surrogates). Needs the standard library
only, as the grader's process does.
"""

import socket
import struct
import time
from typing import Final

_HEADER: Final = struct.Struct(">BI")
_LENGTH: Final = struct.Struct(">I")
_LARGEST: Final = 256 << 20
MOST_PARTS: Final = 16


class FrameError(Exception):
    """The other side is gone, answers nothing in time, or what it sent is no frame."""


def send(connection: socket.socket, parts: tuple[bytes, ...], seconds: float | None = None) -> None:
    """Send one frame. `seconds` limits the whole of it; None waits for ever."""
    lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
    size = len(lengths) + sum(map(len, parts))
    try:
        connection.settimeout(seconds)
        connection.sendall(b"".join((_HEADER.pack(len(parts), size), lengths, *parts)))
    except TimeoutError:
        raise FrameError(f"took nothing for {seconds:.0f} s") from None
    except OSError as error:
        raise FrameError(f"is gone ({error.strerror})") from None


def receive(connection: socket.socket, seconds: float | None = None) -> tuple[bytes, ...]:
    """The next frame's parts. `seconds` limits the whole of it; None waits for ever."""
    deadline = None if seconds is None else time.monotonic() + seconds
    number, size = _HEADER.unpack(_exactly(connection, _HEADER.size, deadline))
    if number > MOST_PARTS or not number * _LENGTH.size <= size <= _LARGEST:
        raise FrameError("sent what is no frame")
    body = memoryview(_exactly(connection, size, deadline))
    at = number * _LENGTH.size
    lengths = [_LENGTH.unpack_from(body, index * _LENGTH.size)[0] for index in range(number)]
    if at + sum(lengths) != size:
        raise FrameError("sent what is no frame")
    parts: list[bytes] = []
    for length in lengths:
        parts.append(bytes(body[at : at + length]))
        at += length
    return tuple(parts)


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        try:
            connection.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            read = connection.recv_into(view[at:])
        except TimeoutError:
            raise FrameError("did not answer in time") from None
        except OSError as error:
            raise FrameError(f"is gone ({error.strerror})") from None
        if read == 0:
            raise FrameError("is gone")
        at += read
        if at < size and deadline is not None and time.monotonic() > deadline:
            raise FrameError("did not answer in time")
    return data
