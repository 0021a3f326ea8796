"""Streams to clients: trio's own conformance suite for TCP, and what each carrier adds."""

from __future__ import annotations

import socket
import struct

import pytest
import trio
import trio.testing

from broker_adapter.mqtt.transport.streams import TcpStream


def pair(buffer_bytes: int = 0) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.socket()
        if buffer_bytes:
            for sock in (listener, left):
                # What is accepted inherits them.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        left.connect(listener.getsockname())
        right, _ = listener.accept()
    for sock in (left, right):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return left, right


async def stream_pair() -> tuple[TcpStream, TcpStream]:
    left, right = pair()
    return TcpStream(left), TcpStream(right)


async def clogged_pair() -> tuple[TcpStream, TcpStream]:
    # Sockets of a fixed size: the system makes others larger while they are being filled.
    left, right = (TcpStream(sock) for sock in pair(buffer_bytes=4096))
    with trio.move_on_after(0.2):
        async with trio.open_nursery() as nursery:
            for stream in (left, right):
                nursery.start_soon(fill, stream)
    return left, right


async def fill(stream: TcpStream) -> None:
    while True:
        await stream.send_all(b"x" * 65_536)


# The suite closes streams with the peer still open: each such close waits a moment for the peer's own.
@pytest.mark.timeout(120)
async def test_it_keeps_the_rules_of_a_stream() -> None:
    await trio.testing.check_two_way_stream(stream_pair, clogged_pair)


async def test_what_was_sent_last_arrives_although_the_peer_continues_sending() -> None:
    """Closing a socket with unread bytes in it resets the connection, and the peer loses the reason that was sent."""
    left, right = await stream_pair()
    async with right:
        await right.send_all(b"never read" * 1000)
        await left.send_all(b"the reason")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.aclose)
            received = b""
            while data := await right.receive_some():
                received += data
            assert received == b"the reason"
            await right.aclose()


async def test_closing_ends_a_task_that_was_about_to_receive() -> None:
    """Closing takes what has just arrived; the task that was woken for it went on to wait beside the closing one."""
    # Which of two tasks goes first that are woken at once is left to chance.
    for _ in range(32):
        left, right = await stream_pair()
        async with right, trio.open_nursery() as nursery:

            async def receive(stream: TcpStream = left) -> None:
                try:
                    assert await stream.receive_some() == b"news"
                except trio.ClosedResourceError:
                    return

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            right.send_nowait(b"news")
            await trio.lowlevel.checkpoint()
            nursery.start_soon(right.aclose)
            await left.aclose()


async def test_a_second_close_leaves_nothing_that_waits_on_the_number_of_the_socket() -> None:
    """One task closed a stream and waited for the peer, another one closed it at once. The next connection got the same
    number, and its first receive failed: another task was still waiting on it.
    """
    left, right = pair()
    number = left.fileno()
    stream = TcpStream(left)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.aclose)
        await trio.testing.wait_all_tasks_blocked()
        await trio.aclose_forcefully(stream)
        others = pair()
        try:
            (reused,) = [sock for sock in others if sock.fileno() == number]
            with trio.move_on_after(0.01) as waiting:
                await trio.lowlevel.wait_readable(reused)
            assert waiting.cancelled_caught
        finally:
            for sock in (right, *others):
                sock.close()


async def test_closing_wakes_a_task_that_receives() -> None:
    left, right = await stream_pair()
    async with right:
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await left.receive_some()

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            await trio.aclose_forcefully(left)


async def test_a_peer_that_reset_the_connection_is_a_broken_stream() -> None:
    left, right = pair()
    right.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    right.close()
    stream = TcpStream(left)
    with pytest.raises(trio.BrokenResourceError, match="reset by peer"):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"x")
    await trio.aclose_forcefully(stream)


async def test_sending_at_once_takes_what_the_system_takes() -> None:
    left, right = (TcpStream(sock) for sock in pair(buffer_bytes=4096))
    data = bytes(1 << 20)
    taken = [left.send_nowait(data) for _ in range(100)]
    assert 0 < taken[0] < len(data)
    assert taken[-1] == 0, "a full socket takes nothing"
    await trio.aclose_forcefully(left)
    await trio.aclose_forcefully(right)


async def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    left, right = await stream_pair()
    async with left, right:
        await right.send_all(b"kept")
        with trio.CancelScope() as scope:
            scope.cancel()
            await left.receive_some()
        assert scope.cancelled_caught
        assert await left.receive_some() == b"kept"
        await right.aclose()


async def test_two_streams_that_receive_in_turn_do_not_mix_their_bytes() -> None:
    """They share one buffer."""
    pairs = [await stream_pair() for _ in range(3)]
    received: dict[int, bytes] = {}

    async def receive(number: int, stream: TcpStream) -> None:
        received[number] = b""
        while data := await stream.receive_some(7):
            received[number] += data

    async with trio.open_nursery() as nursery:
        for number, (left, _) in enumerate(pairs):
            nursery.start_soon(receive, number, left)
        for _ in range(100):
            for number, (_, right) in enumerate(pairs):
                await right.send_all(b"%d" % number * 11)
        async with trio.open_nursery() as closing:
            for _, right in pairs:
                closing.start_soon(right.aclose)
    assert received == {number: b"%d" % number * 1100 for number in range(3)}
    for left, _ in pairs:
        await trio.aclose_forcefully(left)


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_stream_notices_that_its_peer_has_left_before_all_is_received(how: str) -> None:
    """What came first may be there for as long as the process is frozen."""
    left, right = pair()
    stream = TcpStream(left)
    right.send(b"unread")
    assert not stream.has_peer_left()
    if how == "reset":
        right.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    right.close()
    assert stream.has_peer_left()
    await stream.aclose()
    assert stream.has_peer_left()
