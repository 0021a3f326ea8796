"""A client that waits for each reply before it sends the next request costs no work that gives nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from journal.protocol import Op, frames
from tests.server.serving import serving

REQUESTS = 50


async def test_every_request_was_received_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each one the server asked again, in a turn of the loop of its own, although the socket was empty."""
    calls = 0
    recv_into = socket.socket.recv_into

    def counted(self: socket.socket, view: memoryview) -> int:
        nonlocal calls
        calls += 1
        return recv_into(self, view)

    async with serving(tmp_path) as served, served.client() as client:
        monkeypatch.setattr(socket.socket, "recv_into", counted)
        for number in range(REQUESTS):
            await client.send(frames.build(Op.PING, number))
            assert (await client.receive()).correlation == number
    # The end of the connection is received, too.
    assert REQUESTS <= calls <= REQUESTS + 2


async def test_what_comes_behind_a_short_read_is_taken_at_once(tmp_path: Path) -> None:
    """Frames in pieces of all sizes, each sent when the one before has been read: none waits for the next."""
    async with serving(tmp_path) as served, served.client() as client:
        ping = frames.build(Op.PING, 7)
        for size in range(1, len(ping)):
            await client.send(ping[:size])
            await client.send(ping[size:] + ping)
            assert [(await client.receive()).correlation for _ in range(2)] == [7, 7]
