"""Frames: what is sent arrives, and what could hurt the host is refused."""

import contextlib
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.errors import SandboxLost
from broker.sandbox.channel import Channel
from broker.sandbox.protocol import (
    HEADER,
    HOST_VALUES,
    MAX_DEPTH,
    MAX_FRAME,
    MAX_MEMORY,
    MAX_NUMBER,
    MAX_VALUES,
    PASSED_ON,
    Feed,
    ProtocolError,
    decode,
    encode,
    framed,
)
from tests.fixtures.heavy_frames import HEAVY

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
        b'{"a":1e999}',
        b'{"a":-1e999}',
        b'{"a":' + b"7" * (MAX_NUMBER + 1) + b"}",
        b'{"a":0.' + b"7" * MAX_NUMBER + b"}",
        b'{"a":"\\ud800\\ud800"}',
        b'{"a":"\x00"}',
        b'{"a":"\x1b"}',
        b'{"a":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda payload: repr(payload[:24]),
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
    [
        *(float("nan"), float("inf"), "\ud800", object(), b"bytes", {1, 2}, "x" * MAX_FRAME, _cycle()),
        *([0] * MAX_VALUES, 10**MAX_NUMBER, {"1": 0, 1: 0}, {"\ud800": 0}),
        "\U0001f600" + "x" * (MAX_MEMORY // 4),
    ],
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


def reference(payload: bytes) -> dict[str, Any] | None:
    """What a plain reader makes of a small payload, by the rules as they are told; None is a refusal."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    def no(_: str) -> Any:
        raise ValueError

    def number(read: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda text: read(text) if len(text) <= MAX_NUMBER else no(text)

    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    try:
        text = payload.decode()
        if text[:1].isspace() or text[-1:].isspace():
            return None
        value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_constant=no,
            parse_float=number(float),
            parse_int=number(int),
        )
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return value if isinstance(value, dict) and depth(value) <= MAX_DEPTH + 1 else None
    except (ValueError, RecursionError):
        return None


TOKENS = rb"""{ } [ ] : , " \ \" \u 00 d83d "a" "b": {"a": \ud800 \ud83d\ude00
    1 - 1e9 1e999 0.5 NaN Infinity true null"""
pieces = st.sampled_from(
    [
        *TOKENS.split(),
        b" ",
        b"\n",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        "\u00e9\U0001f600".encode(),
        b"7" * 401,
        b"[" * 33,
    ]
)
hostile = (
    st.binary(max_size=64)
    | st.lists(pieces, max_size=12).map(b"".join)
    | st.lists(pieces, max_size=8).map(lambda parts: b'{"a":' + b"".join(parts) + b"}")
    | st.tuples(frames, st.integers(0, 200), st.binary(max_size=3)).map(
        lambda bent: (
            (clean := encode(bent[0])[HEADER:])[: bent[1]] + bent[2] + clean[bent[1] + len(bent[2]) :]
        )
    )
)


@given(hostile)
@settings(max_examples=1500, deadline=None)
@example(b'{"a":"\\\\","b":"\\\\\\""}')
def test_whatever_comes_is_read_as_the_rules_say_or_refused(payload: bytes) -> None:
    """No other exception than ProtocolError, and the same verdict as a plain reader with the same rules."""
    try:
        seen = decode(payload)
    except ProtocolError:
        seen = None
    assert seen == reference(payload)
    if seen is not None:
        assert decode(encode(seen)[HEADER:]) == seen, "what a sandbox may send can be passed on"


@given(
    st.lists(hostile.map(lambda p: len(p).to_bytes(HEADER, "big") + p) | st.binary(max_size=9), max_size=5)
)
@settings(max_examples=300, deadline=None)
def test_a_hostile_stream_gives_frames_or_a_refusal_and_nothing_else(parts: list[bytes]) -> None:
    feed = Feed()
    for part in parts:
        try:
            assert all(isinstance(frame, dict) for frame in feed.add(part))
        except ProtocolError:
            return


@pytest.mark.parametrize("mark", [0, PASSED_ON])
@pytest.mark.parametrize("name", HEAVY)
async def test_no_frame_costs_the_host_more_than_8_mib(name: str, mark: int) -> None:
    """The bytes themselves counted. What the same frames cost in time: `./run bench frame_cost`."""
    stream = framed(HEAVY[name], mark)
    tracemalloc.start()
    try:
        channel = Channel()
        for start in range(0, len(stream), 1 << 16):  # as they come from a socket
            channel.data_received(stream[start : start + (1 << 16)])
        with contextlib.suppress(SandboxLost):
            await channel.receive(60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 8 << 20


async def test_a_hostile_stream_ends_as_a_lost_sandbox_and_as_nothing_else() -> None:
    for payload in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x09{}", b"\x00", b""):
        channel = Channel()
        channel.data_received(b"\x00\x00\x00\x02{}" + payload)
        channel.eof_received()
        assert await channel.receive(60) == {}
        with pytest.raises(SandboxLost):
            await channel.receive(60)


def test_the_host_may_send_a_task_with_more_values_than_a_sandbox() -> None:
    task = {"tables": [{"name": "a", "type": "text"}] * MAX_VALUES}
    with pytest.raises(ProtocolError, match="values"):
        encode(task)
    assert decode(encode(task, HOST_VALUES)[HEADER:], HOST_VALUES) == task
