"""The host's end of a channel: frames arrive whole and in order, and a flood waits outside."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from broker.errors import SandboxLost
from broker.sandbox.channel import BUFFER, Channel
from broker.sandbox.protocol import MAX_FRAME, PASSED_ON, encode, framed


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Channel, socket.socket]]:
    host, inner = socket.socketpair()
    inner.setblocking(False)
    _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=host)
    yield channel, inner
    channel.close()
    inner.close()


Ends = tuple[Channel, socket.socket]


async def send(inner: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(inner, data)


async def test_frames_come_whole_and_in_order_however_they_are_cut(ends: Ends) -> None:
    channel, inner = ends
    frames = [{"op": "a", "n": n, "text": "x" * (n * 7 % 50)} for n in range(50)]
    data = b"".join(encode(frame) for frame in frames)

    async def trickle() -> None:
        for start in range(0, len(data), 13):
            await send(inner, data[start : start + 13])
            await asyncio.sleep(0)

    sending = asyncio.ensure_future(trickle())
    assert [await channel.receive(5) for _ in frames] == frames
    await sending


async def test_a_time_out_or_a_cancellation_in_the_middle_of_a_frame_loses_nothing(ends: Ends) -> None:
    channel, inner = ends
    data = encode({"op": "slow"})
    await send(inner, data[:7])
    with pytest.raises(TimeoutError):
        await channel.receive(0.01)
    waiting = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await send(inner, data[7:])
    assert await channel.receive(5) == {"op": "slow"}


async def test_what_was_sent_before_the_end_is_received_before_it(ends: Ends) -> None:
    channel, inner = ends
    await send(inner, encode({"op": "last"}) + b"\0\0")
    inner.close()
    await asyncio.sleep(0.01)
    assert await channel.receive(5) == {"op": "last"}
    for _ in range(2):
        with pytest.raises(SandboxLost, match="ended unexpectedly"):
            await channel.receive(5)
    with pytest.raises(SandboxLost, match="gone"):
        await channel.send({"op": "x"})


async def test_closing_ends_who_waits(ends: Ends) -> None:
    channel, _ = ends
    waiting = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0.01)
    channel.close()
    with pytest.raises(SandboxLost, match="closed"):
        await waiting


@pytest.mark.parametrize("size", [10, 1_000, MAX_FRAME // 2])
async def test_a_flood_waits_in_the_sandbox_and_not_in_the_host(ends: Ends, size: int) -> None:
    channel, inner = ends
    frame = {"op": "flood", "text": "x" * size}
    data = encode(frame)
    count = 8 * MAX_FRAME // len(data)
    sending = asyncio.ensure_future(send(inner, data * count))
    await asyncio.sleep(0.1)
    assert not sending.done()
    # What one reading brings, at most 256 KiB, may come on top.
    assert len(channel._bytes) <= max(BUFFER, len(data)) + (1 << 18)
    for _ in range(count):
        assert await channel.receive(5) == frame
    await sending


@pytest.mark.parametrize(
    "payload",
    [
        *(b'{"op":"ready"}', b'{"op":"pong"}', b'{"op":"observation","stdout":""}', b"{}", b'{"op":["end"]}'),
        *(b'{"op":"error","kind":"ours","traceback":""}', b'{"op":"end","op":"end"}', b"[]", b"\xff", b""),
    ],
)
async def test_nothing_that_a_program_writes_passes_for_process_1(ends: Ends, payload: bytes) -> None:
    channel, inner = ends
    await send(inner, framed(payload, PASSED_ON) + framed(b'{"op":"pong"}'))
    broken = await channel.receive(5)
    assert (broken["op"], broken["kind"]) == ("error", "protocol"), "its own fault, and no loss of a sandbox"
    assert await channel.receive(5) == {"op": "pong"}, "process 1 says the same unmarked"


@pytest.mark.parametrize(
    "frame", [{"op": "generate", "messages": 1}, {"op": "end"}, {"op": "submit", "text": 1}]
)
async def test_a_request_that_was_passed_on_is_read_as_it_is(ends: Ends, frame: dict[str, object]) -> None:
    channel, inner = ends
    await send(inner, framed(encode(frame)[4:], PASSED_ON))
    assert await channel.receive(5) == frame


@pytest.mark.parametrize("mark", [2, 0x7F, 0xFF])
async def test_a_mark_that_nobody_makes_is_a_lost_sandbox(ends: Ends, mark: int) -> None:
    channel, inner = ends
    await send(inner, framed(b'{"op":"end"}', mark))
    with pytest.raises(SandboxLost, match="malformed"):
        await channel.receive(5)


async def test_who_waits_no_time_is_told_at_once_and_loses_nothing(ends: Ends) -> None:
    channel, inner = ends
    for timeout in (0.0, -1.0, 1e-9):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.receive(timeout), 5)
    await send(inner, encode({"op": "later"}))
    assert await channel.receive(5) == {"op": "later"}


async def test_a_header_past_the_limit_is_refused_and_what_follows_it_not_stored(ends: Ends) -> None:
    channel, inner = ends
    sending = asyncio.ensure_future(send(inner, b"\xff\xff\xff\xff" + bytes(4 * MAX_FRAME)))
    with pytest.raises(SandboxLost, match="malformed"):
        await channel.receive(5)
    await asyncio.sleep(0.05)
    assert len(channel._bytes) <= BUFFER + (1 << 18)
    sending.cancel()


async def test_a_sandbox_that_reads_nothing_is_lost_in_the_end(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, _ = ends
    monkeypatch.setattr("broker.sandbox.channel.SEND_SECONDS", 0.1)

    async def fill() -> None:
        for _ in range(20):
            await channel.send({"op": "x", "text": "y" * 500_000})

    with pytest.raises(SandboxLost, match="took no frame"):
        await fill()
