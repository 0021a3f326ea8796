"""A bridge whose store, a real server, is killed: records that the sink has are not counted as lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.bridge.driver import BridgeDriver
from broker_adapter.bridge.reporting import Reporter
from broker_adapter.bridge.settled import Settled, Unconfirmed, confirm_of_before
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import QueueMode, QueueSettings, QueueState, look
from broker_adapter.cache_queue.queue import purge_queue
from broker_adapter.cache_queue.stored import Counts
from broker_adapter.errors import ConnectionLostError
from broker_adapter.sinks import Batch, Sink, SinkContext
from tests.bridge.fakes import Shelf, ShelfSink
from tests.cache_queue.queues import NAME, driven, filled
from tests.cache_queue.test_store_killed import killable, put, writing
from tests.patience import PATIENCE_S

HYBRID = QueueSettings(mode=QueueMode.HYBRID)


@attrs.define(eq=False)
class SlowToReply:
    """A sink that takes a batch at once, and replies later.

    Attributes:
        replies: While it is not set, no reply is sent.
        under_way: Writes without a reply.
    """

    shelf: Shelf
    replies: trio.Event = attrs.Factory(trio.Event)
    under_way: int = 0

    @asynccontextmanager
    async def open(self, context: SinkContext) -> AsyncIterator[Sink]:
        yield SlowSink(self, context)


class SlowSink(ShelfSink):
    def __init__(self, slow: SlowToReply, context: SinkContext) -> None:
        super().__init__(slow.shelf, context)
        self._slow = slow

    async def write(self, batch: Batch) -> None:
        slow = self._slow
        slow.under_way += 1
        try:
            self._write(batch)
            await slow.replies.wait()
        finally:
            slow.under_way -= 1


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.02)


async def until_empty(adapter: StorageAdapter) -> QueueState:
    with trio.fail_after(PATIENCE_S):
        while (state := await look(adapter, NAME)).depth.record_count or state.lost_count:
            await trio.sleep(0.05)
    return state


@asynccontextmanager
async def driving(adapter: StorageAdapter, slow: SlowToReply, holder: str = "here") -> AsyncIterator[None]:
    spec = BridgeSpec(name=NAME, topics=("#",), open_sink=slow.open, batch_records=10, window=9, queue=HYBRID)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(BridgeDriver(adapter, spec, holder).run)
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
async def adapter() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as opened:
        await filled(opened, *[b"%d" % number for number in range(9)])
        yield opened


@pytest.mark.slow("kills servers")
@pytest.mark.parametrize("keeps_position", [False, True])
async def test_what_a_driver_knows_to_be_at_the_sink_is_not_lost_with_the_memory_of_the_store(
    tmp_path: Path, keeps_position: bool
) -> None:
    """All that was not confirmed counted as lost, and the batch whose reply was on its way was not waited for."""
    slow = SlowToReply(Shelf(keeps_position=keeps_position))
    async with killable(tmp_path) as store, writing(store, HYBRID) as writer:
        await put(writer, 50)
        await writer.look()
        async with driving(store.adapter, slow):
            await slow.shelf.wait_for(10)
            # Batches are taken, and nothing of that is confirmed.
            store.process.freeze()
            slow.replies.set()
            await slow.shelf.wait_for(30)
            slow.replies = trio.Event()
            await until(lambda: slow.under_way == 1)
            await store.kill()
            await store.start()
            slow.replies.set()
            await put(writer, 10)
            await until(lambda: sum(offset >= 50 for offset in slow.shelf.offsets) == 10)
            counts = (await until_empty(store.adapter)).progress.counts
        assert len(slow.shelf.offsets) == len(set(slow.shelf.offsets)) >= 40
        assert counts == Counts(confirmed=len(slow.shelf.offsets), lost=60 - len(slow.shelf.offsets))


@pytest.mark.slow("kills servers")
async def test_what_a_sink_with_a_position_has_is_not_lost_when_the_driver_dies_too(tmp_path: Path) -> None:
    """Records of the same gap that were lost before the sink got anything are counted as lost."""
    slow = SlowToReply(Shelf(keeps_position=True))
    async with killable(tmp_path) as store, writing(store, HYBRID) as writer:
        await put(writer, 5)
        await writer.look()
        await store.kill()
        await store.start()
        await put(writer, 20)
        await writer.look()
        async with driving(store.adapter, slow):
            await slow.shelf.wait_for(10)
            await store.kill()
        await store.start()
        await writer.look()
        taken_count = len(slow.shelf.offsets)
        assert taken_count == 10
        slow.replies.set()
        async with driving(store.adapter, slow, "another"):
            counts = (await until_empty(store.adapter)).progress.counts
        assert len(slow.shelf.offsets) == taken_count
        assert counts == Counts(confirmed=taken_count, lost=25 - taken_count)


@pytest.mark.slow("kills servers")
async def test_what_a_sink_has_is_counted_though_a_writer_of_an_earlier_life_of_the_store_is_gone(
    tmp_path: Path,
) -> None:
    """The read that counts ended at the sink's position, within the gap, so it did not know of the present writer."""
    slow = SlowToReply(Shelf(keeps_position=True))
    async with killable(tmp_path) as store:
        async with writing(store, HYBRID, "gone") as writer, driving(store.adapter, slow):
            slow.replies.set()
            await put(writer, 10)
            await until_empty(store.adapter)
            await writer.look()
        await store.kill()
        await store.start()
        async with writing(store, HYBRID, "present") as writer:
            async with driving(store.adapter, slow):
                await put(writer, 10)
                await until_empty(store.adapter)
                slow.replies = trio.Event()
                await put(writer, 20)
                await writer.look()
                await slow.shelf.wait_for(30)
                await store.kill()
            await store.start()
        slow.replies.set()
        async with driving(store.adapter, slow, "another"):
            counts = (await until_empty(store.adapter)).progress.counts
        taken_count = len(slow.shelf.offsets)
        assert taken_count == 30
        assert counts == Counts(confirmed=taken_count, lost=40 - taken_count)


async def test_a_write_is_finished_when_the_store_does_not_answer_to_a_report(
    adapter: StorageAdapter, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Its reply was not waited for if a report of the driver, and not a confirmation, was the first to fail."""
    slow = SlowToReply(Shelf())
    store_status, is_lost = Reporter._store_status, False

    async def store_or_fail(reporter: Reporter, now_s: float, *, is_forced: bool) -> None:
        nonlocal is_lost
        if slow.under_way and not is_lost:
            is_lost = True
            raise ConnectionLostError("the connection ended before the reply came")
        await store_status(reporter, now_s, is_forced=is_forced)

    monkeypatch.setattr(Reporter, "_store_status", store_or_fail)
    async with driving(adapter, slow):
        await until(lambda: is_lost)
        await trio.sleep(5)
        assert slow.under_way == 1
        slow.replies.set()
        state = await until_empty(adapter)
    assert slow.shelf.offsets == list(range(9))
    assert state.progress.counts == Counts(confirmed=9)


# What a driver left behind


def settled(first_offset: int, next_offset: int) -> Settled:
    return Settled(first_offset, next_offset, 100, Counts(confirmed=next_offset - first_offset), ())


BEFORE = Unconfirmed("id", (settled(0, 2), settled(2, 5)))


@pytest.mark.parametrize(
    ("confirmed_offset", "then_offset"),
    [(0, 5), (2, 5), (5, 5), (1, 1), (3, 3), (7, 7)],
    ids=["nothing", "a part without an answer", "all without an answer", "another", "another later", "beyond"],
)
async def test_what_was_left_behind_is_confirmed_where_it_continues(
    adapter: StorageAdapter, confirmed_offset: int, then_offset: int
) -> None:
    earlier = await driven(adapter, 1)
    if confirmed_offset:
        await earlier.confirm(confirmed_offset, Counts(confirmed=confirmed_offset), 0)
    drain = await driven(adapter, 2)
    await confirm_of_before(drain, BEFORE, "id")
    assert drain.offset == then_offset
    assert drain.counts == Counts(confirmed=then_offset)


async def test_what_was_left_behind_of_another_queue_is_not_confirmed(adapter: StorageAdapter) -> None:
    """After a restore of the store its offsets belong to other records."""
    drain = await driven(adapter)
    await confirm_of_before(drain, BEFORE, "id-17")
    assert drain.offset == 0


async def test_what_was_left_behind_and_is_purged_is_not_confirmed(adapter: StorageAdapter) -> None:
    await purge_queue(adapter, NAME)
    drain = await driven(adapter)
    await confirm_of_before(drain, BEFORE, "id")
    assert drain.counts == Counts(purged=9)
