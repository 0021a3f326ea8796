"""Relays that stop to forward: nothing is refused or reset while they do, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from demo.cluster.network.relays import Gate, Relay
from demo.processes.ports import free_port
from tests.patience import PATIENCE_S

HANGS_S = 0.2
ADDRESS = "127.0.1.1"


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


@asynccontextmanager
async def echo_behind_a_relay() -> AsyncIterator[tuple[Relay, Gate, trio.Nursery, int]]:
    port, gate = free_port(), Gate()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: trio.serve_tcp(echo, port, host=ADDRESS, task_status=task_status))
            relay = Relay(port, (ADDRESS, port), gate)
            await relay.begin(nursery)
            yield relay, gate, nursery, port
            nursery.cancel_scope.cancel()


async def hangs(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(HANGS_S) as waiting:
        await stream.receive_some()
    return waiting.cancelled_caught


async def test_bytes_pass_wait_while_it_is_cut_and_pass_again() -> None:
    async with echo_behind_a_relay() as (_, gate, _, port), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"one")
        assert await stream.receive_some() == b"one"
        gate.shut()
        await stream.send_all(b"two")
        assert await hangs(stream)
        gate.open()
        assert await stream.receive_some() == b"two"


async def test_a_connection_that_begins_while_it_is_cut_hangs() -> None:
    async with echo_behind_a_relay() as (_, gate, _, port):
        gate.shut()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"one")
            assert await hangs(stream)
            gate.open()
            assert await stream.receive_some() == b"one"


async def test_the_end_of_a_connection_passes_but_not_while_it_is_cut() -> None:
    async with echo_behind_a_relay() as (_, gate, _, port), await trio.open_tcp_stream("127.0.0.1", port) as stream:
        gate.shut()
        await stream.send_eof()
        assert await hangs(stream)
        gate.open()
        assert await stream.receive_some() == b""


async def test_a_relay_that_has_ended_refuses_connections_and_closes_those_that_it_had() -> None:
    async with echo_behind_a_relay() as (relay, _, nursery, port):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"one")
            assert await stream.receive_some() == b"one"
            relay.end()
            assert await stream.receive_some() == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", port)
        await relay.begin(nursery)
        async with await trio.open_tcp_stream("127.0.0.1", port) as again:
            await again.send_all(b"two")
            assert await again.receive_some() == b"two"
