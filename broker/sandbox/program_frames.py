"""What a program may ask: reads the frames that process 1 passes on unread.

Whatever a program writes in place of a request becomes its own error of kind protocol, never a word of the
sandbox. Must not know what a request leads to.
"""

from typing import Any, Final

from broker.sandbox.protocol import ProtocolError, decode

_FIELDS: Final = {"generate": "messages", "execute": "code", "submit": "text"}


def read_request(payload: bytes) -> dict[str, Any]:
    """`generate`, `execute`, `submit`, `end` or `error`, with exactly its fields."""
    try:
        frame = decode(payload)
    except ProtocolError as error:
        return protocol_error(f"malformed request: {error}")
    fault = _fault(frame)
    return protocol_error(fault) if fault else frame


def protocol_error(fault: str) -> dict[str, Any]:
    """The frame of a program that broke the protocol."""
    return {"op": "error", "kind": "protocol", "traceback": fault}


def _fault(frame: dict[str, Any]) -> str:
    """Why a frame of the program is no legal request; empty when it is one."""
    op = frame.get("op")
    if op == "end" and len(frame) == 1:
        return ""
    if op == "error" and set(frame) == {"op", "kind", "traceback"}:
        legal = frame["kind"] in ("crash", "protocol") and isinstance(frame["traceback"], str)
        return "" if legal else "bad error"
    if isinstance(op, str) and len(frame) == 2 and _FIELDS.get(op, "op") in frame and op in _FIELDS:
        return ""
    return f"unknown request {str(op)[:40]!r}"
