"""The connections of a process that rest: what one of them brings about may concern another one."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
import trio

from broker_adapter.mqtt.transport.resting import MayRest, RestingConnections, Wakes
from tests.patience import PATIENCE_S


class Resting:
    """A connection that wakes all others when something comes."""

    def __init__(self) -> None:
        self.others: list[Resting] = []
        self.received = 0
        self.wakes: Wakes | None = None

    def receive_resting(self, data: bytes) -> bool:
        self.received += len(data)
        for other in self.others:
            assert other.wakes is not None
            other.wakes.wake()
        return True

    def rests(self, until: Wakes) -> None:
        self.wakes = until

    async def run(self) -> bool:
        raise AssertionError("this test starts no task")


async def test_a_connection_that_another_one_woke_in_the_same_step_is_left_to_its_task() -> None:
    started: list[MayRest] = []
    both_started = trio.Event()

    def start(connection: MayRest, _sock: socket.socket, _peer: int) -> None:
        started.append(connection)
        both_started.set()

    connections: RestingConnections[int] = RestingConnections(start)
    if not connections.is_possible:
        pytest.skip("connections rest where there is epoll")
    one, other = Resting(), Resting()
    one.others, other.others = [other], [one]
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            await nursery.start(connections.run)
            for connection in (one, other):
                here, there = map(stack.enter_context, socket.socketpair())
                here.setblocking(False)
                # Both have something to receive before either is looked at.
                there.sendall(b"x")
                connections.add(connection, here, 0)
            with trio.fail_after(PATIENCE_S):
                await both_started.wait()
            assert one.received + other.received == 1
            assert len(started) == 1
            assert len(connections) == 1
            nursery.cancel_scope.cancel()
