"""The channel of a container whose daemon is elsewhere: its standard input and output, attached.

A remote daemon cannot mount this host's socket. The attached stream carries both outputs in blocks (kind,
length, bytes); two threads turn it into an ordinary socket, over whichever transport the client library uses.
Must not know what the frames mean.
"""

import contextlib
import socket
import threading
from typing import Any, Final

from docker import DockerClient

_CHUNK: Final = 1 << 16
_STDOUT: Final = 1


def attach(client: DockerClient, container: str) -> socket.socket:
    """This host's end of a created container's streams; its other end closes when the container ends.

    To be called before the start, so that no byte is missed. Raises what the client library raises.
    """
    api: Any = client.api
    raw = api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stream": 1})
    transport = getattr(raw, "_sock", raw)
    transport.settimeout(None)  # the library's limit is meant for answers; a channel may be silent for long
    host_end, inner = socket.socketpair()
    # `raw` goes along: what closes when it is collected is the connection.
    for work in (_outward, _inward):
        threading.Thread(target=work, args=(inner, transport, raw), daemon=True).start()
    return host_end


def _outward(inner: socket.socket, transport: Any, _: object) -> None:
    """Host to container. The host's end closing ends the connection, and with it the container."""
    try:
        while data := inner.recv(_CHUNK):
            transport.sendall(data)
    except OSError:
        pass
    finally:
        _shut(transport)


def _inward(inner: socket.socket, transport: Any, _: object) -> None:
    """Container to host, standard output only."""
    try:
        while header := _exactly(transport, 8):
            data = _exactly(transport, int.from_bytes(header[4:], "big"))
            if header[0] == _STDOUT:
                inner.sendall(data)
    except OSError:
        pass
    finally:
        _shut(inner)
        _shut(transport)


def _exactly(transport: Any, count: int) -> bytes:
    """So many bytes, or none at the end of the stream."""
    data = bytearray()
    while len(data) < count:
        chunk = transport.recv(min(_CHUNK, count - len(data)))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)


def _shut(end: Any) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        end.shutdown(socket.SHUT_RDWR)
