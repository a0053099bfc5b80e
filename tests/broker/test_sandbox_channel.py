"""The host's end of a channel: frames arrive whole and in order, and a flood waits outside."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from broker.errors import SandboxLost
from broker.sandbox.channel import BUFFER, Channel
from broker.sandbox.protocol import MAX_FRAME, encode


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
