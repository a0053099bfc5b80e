"""Frames: what is sent arrives, and what could hurt the host is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.sandbox.protocol import HEADER, MAX_DEPTH, MAX_FRAME, Feed, ProtocolError, decode, encode

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4)
)
frames = st.dictionaries(text, values, max_size=4)


@given(frames)
@settings(max_examples=60)
def test_a_frame_arrives_as_it_was_sent(frame: dict[str, Any]) -> None:
    assert decode(encode(frame)[HEADER:]) == frame


@given(st.lists(frames, max_size=4), st.integers(1, 40))
@settings(max_examples=40)
def test_frames_survive_any_cutting_of_the_stream(sent: list[dict[str, Any]], size: int) -> None:
    stream = b"".join(encode(frame) for frame in sent)
    feed = Feed()
    received: list[dict[str, Any]] = []
    for start in range(0, len(stream), size):
        received += feed.add(stream[start : start + size])
    assert received == sent


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1,"a":2}',
        b'{"a":"\\ud800"}',
        b'{"\\udc00":1}',
        b'{"a":"\xff"}',
        b'{"a":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
        b"[" * 100_000,
        b"[1]",
        b"1",
        b"",
        b" {}",
        b'{"a":1} x',
        b'{"a":1}{"b":2}',
        b'{"a":',
        b"\x80\x04\x95pickle",
    ],
    ids=repr,
)
def test_a_malformed_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(payload)


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), "\ud800", object(), b"bytes", {1, 2}, "x" * MAX_FRAME, _cycle()],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_would_be_refused_is_not_sent(value: object) -> None:
    with pytest.raises(ProtocolError):
        encode({"value": value})


def test_a_giant_length_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        Feed().add(b"\xff\xff\xff\xff")


def test_a_surrogate_pair_that_is_whole_is_text() -> None:
    assert decode(b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}
