"""Bytes go out in order, at once if they can, and a peer that reads nothing is not waited for without limit."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, memory_stream_one_way_pair, wait_all_tasks_blocked

from broker_adapter.mqtt.model.statistics import BrokerStatistics
from broker_adapter.mqtt.transport.output import SavedFirst, StreamCarrier
from journal.net.output import Output


class Peer(trio.abc.SendStream):
    """Takes so many bytes at once and the rest on request."""

    def __init__(self) -> None:
        self.at_once = 0
        self.taken = b""
        self.may_take = trio.Event()
        self.is_gone = False

    def send_nowait(self, data: bytes) -> int:
        if self.is_gone:
            raise trio.BrokenResourceError
        sent = min(self.at_once, len(data))
        self.taken += bytes(data[:sent])
        return sent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.may_take.wait()
        if self.is_gone:
            raise trio.BrokenResourceError
        self.taken += bytes(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Bench:
    def __init__(self, nursery: trio.Nursery, stream: trio.abc.SendStream) -> None:
        self.events: list[str] = []
        self.statistics = BrokerStatistics()
        self.start = nursery.start_soon
        self.output = Output(
            StreamCarrier(stream, self.statistics),
            nursery.start_soon,
            limit_bytes=10,
            stalled_after_s=60,
            on_broken=lambda: self.events.append("broken"),
            on_room=lambda: self.events.append("room"),
        )

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.output.collect(packet)
        self.output.flush()


@pytest.fixture
async def tasks() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


async def test_what_the_peer_takes_at_once_needs_no_task(tasks: trio.Nursery) -> None:
    peer = Peer()
    peer.at_once = 100
    bench = Bench(tasks, peer)
    bench.send(b"one", b"two")
    assert peer.taken == b"onetwo"
    assert not tasks.child_tasks
    assert (bench.output.waiting_bytes, bench.statistics.bytes_sent) == (0, 6)


async def test_what_it_does_not_take_waits_and_goes_in_order(tasks: trio.Nursery) -> None:
    peer = Peer()
    peer.at_once = 4
    bench = Bench(tasks, peer)
    bench.send(b"one", b"two")
    bench.send(b"three", b"four")
    assert peer.taken == b"onet"
    assert not bench.output.has_room
    peer.may_take.set()
    await bench.output.wait_drained()
    assert peer.taken == b"onetwothreefour"
    assert bench.output.waiting_bytes == 0
    assert set(bench.events) == {"room"}


async def test_what_the_peer_takes_at_once_makes_room(tasks: trio.Nursery) -> None:
    """A queue larger than the limit was taken whole by the system: the rest of the messages waited for the next one."""
    peer = Peer()
    peer.at_once = 100
    bench = Bench(tasks, peer)
    bench.send(b"more than the limit")
    await wait_all_tasks_blocked()
    assert bench.events == ["room"]


async def test_a_reader_waits_no_longer_when_reserved_bytes_were_sent_at_once(tasks: trio.Nursery) -> None:
    """Nothing more was read from a subscriber at QoS 2 whose saved messages the system took whole."""
    peer = Peer()
    peer.at_once = 100
    bench = Bench(tasks, peer)
    is_saved = trio.Event()
    saved = SavedFirst(is_saved.wait, bench.output, bench.start)
    saved.send(b"more than the limit")
    assert not bench.output.has_room
    bench.start(bench.output.wait_for_room)
    await wait_all_tasks_blocked()
    is_saved.set()
    await wait_all_tasks_blocked()
    assert not tasks.child_tasks
    assert bench.events == ["room"]


async def test_a_reader_waits_no_longer_when_reserved_bytes_are_given_up(tasks: trio.Nursery) -> None:
    bench = Bench(tasks, Peer())
    bench.output.reserve_nowait(20)
    bench.start(bench.output.wait_for_room)
    await wait_all_tasks_blocked()
    bench.output.unreserve(20)
    await wait_all_tasks_blocked()
    assert not tasks.child_tasks
    assert bench.events == ["room"]


async def test_a_stream_that_cannot_send_at_once_is_written_to_by_a_task(tasks: trio.Nursery) -> None:
    ours, theirs = memory_stream_one_way_pair()
    bench = Bench(tasks, ours)
    bench.send(b"one", b"two")
    assert await theirs.receive_some() == b"onetwo"


async def test_a_peer_that_takes_nothing_is_given_up(tasks: trio.Nursery, autojump_clock: MockClock) -> None:
    bench = Bench(tasks, Peer())
    bench.send(b"one")
    await trio.sleep(59)
    assert bench.events == []
    await trio.sleep(2)
    assert bench.events == ["broken"]
    bench.send(b"two")
    with trio.fail_after(1):
        await bench.output.wait_drained()
        await bench.output.wait_for_room()


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_peer_that_is_gone_is_told_of_once(tasks: trio.Nursery, at_once: bool) -> None:
    peer = Peer()
    bench = Bench(tasks, peer)
    if at_once:
        peer.is_gone = True
    bench.send(b"one")
    peer.is_gone = True
    peer.may_take.set()
    await wait_all_tasks_blocked()
    bench.send(b"two")
    assert bench.events == ["broken"]


async def test_packets_wait_together_for_what_must_be_durable_first(tasks: trio.Nursery) -> None:
    peer = Peer()
    peer.at_once = 100
    bench = Bench(tasks, peer)
    saves: list[trio.Event] = []

    async def save() -> None:
        saves.append(trio.Event())
        await saves[-1].wait()

    saved = SavedFirst(save, bench.output, bench.start)
    saved.send(b"a")
    await wait_all_tasks_blocked()
    saved.send(b"b")
    saved.send(b"c" * 8)
    assert not bench.output.has_room
    saves[0].set()
    await wait_all_tasks_blocked()
    # What came after the first save began needs another one.
    assert (peer.taken, len(saves)) == (b"a", 2)
    saves[1].set()
    await wait_all_tasks_blocked()
    assert peer.taken == b"abcccccccc"
    assert bench.output.has_room
