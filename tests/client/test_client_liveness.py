"""A client is never stuck: every append is answered, or fails, once the server can be reached and refuses nothing.

The server of these tests does, in any order that chance decides, what a real one may do: it is away, comes back without
what it had in memory or without its producers, closes handles, deletes shards, refuses requests for a while, and
answers late. Time is simulated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from journal.client import AppendFuture, Client, open_client
from journal.client.appends import AppendLimits
from journal.protocol import Op
from journal.protocol.errors import ConnectionLostError, ShuttingDownError
from shards.errors import OverloadedError, SequenceLostError, StorageError
from tests.client.fake_server import FakeServer

SHARDS = ("a", "b", "c")
STEP_S = 0.02
LIVELY_S = 60.0
"""By then, in simulated time, all is answered after the last fault: many times the longest back-off."""

LIMITS = AppendLimits(window_bytes=4000, max_batch_records=4, max_in_flight=3)
REFUSED = (Op.HELLO, Op.PRODUCER_OPEN, Op.OPEN_SHARD, Op.APPEND)

shards = st.sampled_from(SHARDS)
STEPS = st.one_of(
    st.tuples(st.just("append"), shards, st.integers(1, 5)),
    st.tuples(st.just("append"), shards, st.integers(1, 5)),
    st.tuples(st.just("append_and_wait"), shards),
    st.tuples(st.just("append_at"), shards),
    st.tuples(st.just("pass_time"), st.integers(0, 40)),
    st.tuples(st.just("turn"), st.integers(1, 8)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("lose_memory"), shards, st.integers(1, 4)),
    st.tuples(st.just("refuse_sequence"), st.integers(1, 3)),
    st.tuples(st.just("forget_producers")),
    st.tuples(st.just("close_handles")),
    st.tuples(st.just("delete"), shards),
    st.tuples(st.just("create"), shards),
    st.tuples(st.just("refuse"), st.sampled_from(REFUSED), st.integers(1, 3)),
    st.tuples(st.just("hold_answers")),
    st.tuples(st.just("answer_late"), st.sampled_from([Op.PRODUCER_OPEN, Op.OPEN_SHARD])),
    st.tuples(st.just("answer")),
    st.tuples(st.just("go_away")),
    st.tuples(st.just("come_back")),
    st.tuples(st.just("check_before_resending")),
)


class MemoryTransport:
    """A transport of the client over a stream in memory."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            data = await self._stream.receive_some(len(buffer))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLostError("cut") from error
        buffer[: len(data)] = data
        return len(data)

    async def send(self, parts: list[bytes]) -> None:
        try:
            await self._stream.send_all(b"".join(parts))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLostError("cut") from error

    def send_nowait(self, data: bytes) -> int:
        return 0

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


class World:
    """A client, its server, and what happens to them."""

    def __init__(self, server: FakeServer, client: Client, tasks: trio.Nursery) -> None:
        self.server = server
        self.client = client
        self.tasks = tasks
        self.pending: list[AppendFuture] = []
        self.waiting = 0
        self.is_away = False

    async def play(self, steps: list[tuple[Any, ...]]) -> None:
        for name, *arguments in steps:
            await getattr(self, name)(*arguments)

    async def append(self, shard: str, count: int, expected_offset: int | None = None) -> None:
        for number in range(count):
            records = [b"%d" % number] * (1 + number % 2)
            try:
                self.pending.append(self.client.append_nowait(shard, records, expected_offset=expected_offset))
            except OverloadedError:
                return  # the window is full

    async def append_and_wait(self, shard: str) -> None:
        self.waiting += 1
        self.tasks.start_soon(self._wait_for_one, shard)

    async def _wait_for_one(self, shard: str) -> None:
        # What became of it is of no interest here, only that it is known.
        with suppress(StorageError):
            await self.client.append(shard, [b"waited for"])
        self.waiting -= 1

    async def append_at(self, shard: str) -> None:
        await self.append(shard, 1, expected_offset=0)

    async def pass_time(self, steps: int) -> None:
        await trio.sleep(steps * STEP_S)

    async def turn(self, count: int) -> None:
        for _ in range(count):
            await trio.lowlevel.checkpoint()

    async def cut(self) -> None:
        await self.server.kill_connections()

    async def lose_memory(self, shard: str, count: int) -> None:
        """The server is killed, and the last batches of a shard are gone."""
        await self.server.kill_connections()
        found = self.server.shards.get(shard)
        if found is None:
            return
        for producer, (following, offsets) in list(found.producers.items()):
            lost = sorted(offsets)[-count:]
            if lost:
                found.producers[producer] = (lost[0], {at: offset for at, offset in offsets.items() if at not in lost})
            else:
                found.producers[producer] = (following, offsets)

    async def refuse_sequence(self, times: int) -> None:
        """The server does not know what became of a batch, and has later ones."""
        self._refuse_appends([SequenceLostError("lost", 0)] * times)

    async def forget_producers(self) -> None:
        self.server.epochs.clear()

    async def close_handles(self) -> None:
        for session in self.server.sessions:
            session.handles.clear()

    async def delete(self, shard: str) -> None:
        self.server.shards.pop(shard, None)

    async def create(self, shard: str) -> None:
        if shard not in self.server.shards:
            self.server.create(shard)

    async def refuse(self, op: Op, times: int) -> None:
        """A temporary refusal of the next requests of a kind."""
        if op is Op.APPEND:
            self._refuse_appends([OverloadedError("busy")] * times)
            return
        left = [times]

        def fault(asked: int, _request: Any) -> StorageError | None:
            if asked == op and left[0]:
                left[0] -= 1
                return ShuttingDownError("stopping")
            return None

        self.server.fault = fault

    def _refuse_appends(self, errors: list[StorageError]) -> None:
        waiting = iter(errors)
        self.server.append_fault = lambda _shard, _batch: next(waiting, None)

    async def hold_answers(self) -> None:
        self.server.hold_acks = True

    async def answer_late(self, op: Op) -> None:
        self.server.answers_late = op

    async def answer(self) -> None:
        with suppress(trio.BrokenResourceError):
            await self.server.release_acks()

    async def go_away(self) -> None:
        self.is_away = True
        await self.server.kill_connections()

    async def come_back(self) -> None:
        self.is_away = False

    async def check_before_resending(self) -> None:
        """A broker's check on the next connections, which withdraws half of what was not answered."""

        async def check(reconnection: Any) -> None:
            batches = reconnection.unanswered_batches()
            reconnection.withdraw({append for batch in batches[::2] for append in batch})

        self.client._checks[:] = [check]

    async def recover(self) -> None:
        """No more faults from now on."""
        self.server.fault = lambda _op, _request: None
        self.server.append_fault = lambda _shard, _batch: None
        self.is_away = False
        for shard in SHARDS:
            await self.create(shard)
        await self.answer()


@asynccontextmanager
async def a_world(*, joins: bool) -> AsyncIterator[World]:
    server = FakeServer()
    for shard in SHARDS:
        server.create(shard)
    async with trio.open_nursery() as tasks:
        worlds: list[World] = []

        async def connect(_nursery: trio.Nursery) -> MemoryTransport:
            await trio.sleep(STEP_S / 4)
            if worlds and worlds[0].is_away:
                raise ConnectionLostError("no server there")
            here, there = memory_stream_pair()
            tasks.start_soon(server.serve, there)
            return MemoryTransport(here)

        async with open_client("fake", connect=connect, join_appends=joins, limits=LIMITS) as client:
            worlds.append(World(server, client, tasks))
            yield worlds[0]
        tasks.cancel_scope.cancel()


async def play(steps: list[tuple[Any, ...]], joins: bool) -> None:
    async with a_world(joins=joins) as world:
        await world.play(steps)
        await world.recover()
        with trio.move_on_after(LIVELY_S) as patience:
            await world.client.flush()
            while world.waiting:
                await trio.sleep(STEP_S)
        assert not patience.cancelled_caught, {shard: world.client.append_state(shard) for shard in SHARDS}
        assert all(append.is_done for append in world.pending)
        assert world.client.unacknowledged_bytes == 0
        with trio.fail_after(LIVELY_S):
            await world.client.append("a", [b"the client goes on"])
        assert world.client.append_state("a") == "all are answered"


@given(st.lists(STEPS, max_size=40), st.booleans())
def test_every_append_is_answered_once_the_server_refuses_nothing(steps: list[tuple[Any, ...]], joins: bool) -> None:
    trio.run(play, steps, joins, clock=MockClock(autojump_threshold=0))


def test_a_registration_that_is_tried_again_does_not_fence_that_of_the_next_connection() -> None:
    """Refused, cut and connected again before the pause was over: the client registered twice and fenced itself."""

    async def play_it() -> None:
        async with a_world(joins=True) as world:
            await world.refuse(Op.PRODUCER_OPEN, 6)
            await world.append("a", 1)
            while world.server.seen.count(Op.PRODUCER_OPEN) < 6:
                await trio.sleep(STEP_S)
            await world.answer_late(Op.PRODUCER_OPEN)
            await world.cut()
            await trio.sleep(LIVELY_S)
            await world.answer()
            await world.client.flush()
            assert world.pending[0].is_accepted
            assert world.server.seen.count(Op.PRODUCER_OPEN) == 7

    trio.run(play_it, clock=MockClock(autojump_threshold=0))


def test_what_an_append_waits_for_is_said() -> None:
    async def play_it() -> None:
        async with a_world(joins=False) as world:
            client, server = world.client, world.server
            assert client.append_state("a") == "nothing was appended"
            await client.append("a", [b"first"])
            assert client.append_state("a") == "all are answered"
            await world.hold_answers()
            await world.append("a", 1)
            await trio.sleep(STEP_S)
            sent = "sent, not answered (1 batches sent, 0 to be sent, 0 appends behind them)"
            assert client.append_state("a") == sent
            await world.answer()
            await world.refuse(Op.APPEND, 1)
            await world.append("a", 1)
            await trio.sleep(STEP_S / 4)
            assert "after a pause, since the server refused: busy" in client.append_state("a")
            await world.go_away()
            await trio.sleep(STEP_S)
            assert client.append_state("a").startswith("there is no connection to the server: ")
            await world.recover()
            await client.flush()
            assert server.session_count > 1

    trio.run(play_it, clock=MockClock(autojump_threshold=0))
