"""The way into a queue, on every engine: what is taken and what is not, in numbers that come out even."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from broker_adapter import PendingAppend, StorageAdapter
from broker_adapter.cache_queue import Overflow, QueueMode, QueueSettings, QueueWriter, ensure_queue, look, names
from broker_adapter.cache_queue.errors import QueueFullError
from broker_adapter.cache_queue.stored import Counts, WriterCounts
from shards.errors import DiskFullError
from shards.format.record import Record
from shards.model import Mode
from shards.seams.clock import ManualClock
from tests.adapter_contract.conftest import Engine, Opening
from tests.cache_queue.queues import NAME, driven, filled, waiting
from tests.mqtt.session.faults import Path as StorePath
from tests.patience import PATIENCE_S

BATCH = 10
VALUE_BYTES = 1000
BY_COUNT = {"max_records": 95, "max_bytes": 0}
BY_BYTES = {"max_records": 0, "max_bytes": 200_000}
BOUNDS = pytest.mark.parametrize("bounds", [BY_COUNT, BY_BYTES], ids=["by count", "by bytes"])


@asynccontextmanager
async def writing(adapter: StorageAdapter, settings: QueueSettings, name: str = "w") -> AsyncIterator[QueueWriter]:
    async with trio.open_nursery() as nursery:
        writer = QueueWriter(adapter, NAME, settings, writer=name)
        await nursery.start(writer.run)
        yield writer
        nursery.cancel_scope.cancel()


def batch(first: int, count: int = BATCH, size_bytes: int = VALUE_BYTES) -> list[Record]:
    return [Record(b"%08d" % number + bytes(size_bytes - 8)) for number in range(first, first + count)]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.02)


async def stored_numbers(adapter: StorageAdapter) -> list[int]:
    return [int(record.value[:8]) for record in await waiting(await driven(adapter, 99))]


async def until_counted(adapter: StorageAdapter, expected: WriterCounts, name: str = "w") -> None:
    with trio.fail_after(PATIENCE_S):
        while (await look(adapter, NAME)).writers.get(name) != expected:
            await trio.sleep(0.05)


async def offer(writer: QueueWriter, batches: int) -> tuple[int, int]:
    """Offer batches, each known before the next; return how many records were taken, and how many were refused."""
    taken = refused = 0
    for number in range(batches):
        try:
            pending = writer.put_nowait(batch(number * BATCH))
        except QueueFullError:
            refused += BATCH
            continue
        if pending is not None:
            await pending.wait()
            taken += BATCH
    return taken, refused


@BOUNDS
async def test_a_full_queue_refuses_its_producers(adapter: StorageAdapter, bounds: dict[str, int]) -> None:
    settings = QueueSettings(**bounds, overflow=Overflow.REJECT)
    async with writing(adapter, settings) as writer:
        taken, refused = await offer(writer, 40)
        assert writer.is_full
        assert writer.refuses
        assert taken + refused == 400
        assert 0 < taken < 400
        await until_counted(adapter, WriterCounts(rejected=refused))
        state = await look(adapter, NAME)
        assert state.depth.record_count == taken
        # One batch may begin below the bound and end above it.
        if settings.max_records:
            assert taken == 100
        else:
            assert 0.5 * settings.max_bytes <= state.depth.size_bytes <= settings.max_bytes + BATCH * VALUE_BYTES * 1.2
        assert await stored_numbers(adapter) == list(range(taken))


@BOUNDS
async def test_a_full_queue_drops_the_newest(adapter: StorageAdapter, bounds: dict[str, int]) -> None:
    async with writing(adapter, QueueSettings(**bounds, overflow=Overflow.DROP_NEWEST)) as writer:
        taken, refused = await offer(writer, 40)
        assert (refused, writer.refuses, writer.is_full) == (0, False, True)
        await until_counted(adapter, WriterCounts(dropped_newest=400 - taken))
        assert await stored_numbers(adapter) == list(range(taken))


@BOUNDS
async def test_a_full_queue_drops_the_oldest(adapter: StorageAdapter, bounds: dict[str, int]) -> None:
    settings = QueueSettings(**bounds, overflow=Overflow.DROP_OLDEST)
    async with writing(adapter, settings) as writer:
        assert await offer(writer, 40) == (400, 0)
        assert not writer.is_full
        await writer.look()
        state = await look(adapter, NAME)
        if settings.max_records:
            assert state.depth.record_count == 95
        else:
            # An engine may keep the batch whole of which the oldest record is one.
            assert 0.5 * settings.max_bytes <= state.depth.size_bytes <= settings.max_bytes + BATCH * VALUE_BYTES * 1.2
        kept = await stored_numbers(adapter)
        # The newest are kept, without a hole.
        assert kept == list(range(400 - len(kept), 400))
        drain = await driven(adapter, 100)
        part = await drain.read(0, max_bytes=1000, max_wait_s=0)
        assert part.skipped == Counts(dropped_oldest=400 - len(kept))


async def test_room_that_is_made_is_seen(adapter: StorageAdapter) -> None:
    settings = QueueSettings(max_records=20, max_bytes=0)
    async with writing(adapter, settings) as writer:
        assert await offer(writer, 3) == (20, 10)
        drain = await driven(adapter)
        await drain.confirm(15, Counts(confirmed=15), 0)
        await until(lambda: not writer.is_full)
        assert await offer(writer, 3) == (20, 10)


async def test_a_bound_of_nothing_is_none(adapter: StorageAdapter) -> None:
    async with writing(adapter, QueueSettings(max_records=0, max_bytes=0)) as writer:
        assert await offer(writer, 30) == (300, 0)


async def test_the_error_names_the_bound_and_the_way_out(adapter: StorageAdapter) -> None:
    async with writing(adapter, QueueSettings(max_records=1, max_bytes=1 << 20)) as writer:
        await offer(writer, 1)
        with pytest.raises(QueueFullError, match=r"'plant' is full \(1 records or 1 MiB\).*raise max_bytes"):
            writer.put_nowait(batch(0, 1))


@pytest.mark.few_cases(2, "several writers for each engine and each bound")
@BOUNDS
async def test_several_writers_stay_within_the_bound_and_what_is_under_way(
    adapter: StorageAdapter, bounds: dict[str, int]
) -> None:
    """Each decides by itself, and keeps no more than some batches under way."""
    settings = QueueSettings(**bounds, overflow=Overflow.REJECT)
    writers, rounds, window = 3, 60, 3
    outcomes: list[tuple[int, int]] = []

    async def produce(number: int) -> None:
        taken = refused = 0
        async with writing(adapter, settings, f"w{number}") as writer:
            under_way: list[PendingAppend] = []
            for each in range(rounds):
                try:
                    pending = writer.put_nowait(batch(each * BATCH))
                except QueueFullError:
                    refused += BATCH
                    await trio.sleep(0.02)
                    continue
                assert pending is not None
                under_way.append(pending)
                taken += BATCH
                if len(under_way) == window:
                    await under_way.pop(0).wait()
            for pending in under_way:
                await pending.wait()
            await until_counted(adapter, WriterCounts(rejected=refused), f"w{number}")
        outcomes.append((taken, refused))

    async with trio.open_nursery() as nursery:
        for number in range(writers):
            nursery.start_soon(produce, number)
    assert [taken + refused for taken, refused in outcomes] == [rounds * BATCH] * writers
    state = await look(adapter, NAME)
    assert state.depth.record_count == sum(taken for taken, _ in outcomes)
    under_way_count = writers * window * BATCH
    if settings.max_records:
        assert settings.max_records <= state.depth.record_count <= settings.max_records + under_way_count
    else:
        assert state.depth.size_bytes <= settings.max_bytes + under_way_count * VALUE_BYTES * 1.2


async def test_a_writer_continues_counting_where_it_was(opening: Opening) -> None:
    settings = QueueSettings(max_records=10, max_bytes=0)
    async with opening() as adapter, writing(adapter, settings) as writer:
        assert await offer(writer, 3) == (10, 20)
        await until_counted(adapter, WriterCounts(rejected=20))
    async with opening() as adapter, writing(adapter, settings) as writer:
        assert writer.refuses
        assert await offer(writer, 1) == (0, 10)
        await until_counted(adapter, WriterCounts(rejected=30))


async def test_refusals_before_a_record_came_here_are_counted(adapter: StorageAdapter) -> None:
    async with writing(adapter, QueueSettings(max_records=1, max_bytes=0)) as writer:
        writer.rejected(7)
        await until_counted(adapter, WriterCounts(rejected=7))


@pytest.mark.few_cases(1, "fills a disk for each engine")
async def test_a_queue_that_was_made_anew_has_room(adapter: StorageAdapter) -> None:
    settings = QueueSettings(max_records=20, max_bytes=0)
    async with writing(adapter, settings) as writer:
        assert await offer(writer, 3) == (20, 10)
        await adapter.delete_shard(names.shard_of(NAME))
        writer.rejected(1)
        await until(lambda: not writer.is_full)
        assert await offer(writer, 3) == (20, 10)


class FullDisk(StorePath):
    """A way to a store that makes no shards any more."""

    async def create_shard(self, name: str, *arguments: object, **others: object) -> object:
        return await self._pass("create_shard", name, lambda: self._store.create_shard(name, *arguments, **others))


@pytest.mark.few_cases(1, "fills a disk for each engine")
async def test_a_queue_whose_shard_is_deleted_while_the_disk_is_full_ends_nothing(adapter: StorageAdapter) -> None:
    """Making it again was refused, and that ended the writer with its whole broker."""
    path = FullDisk(adapter)
    async with writing(path, QueueSettings(max_records=20, max_bytes=0)) as writer:
        for _ in range(3):
            path.fail(lambda name, _: name == "create_shard", carried_out=False, error=lambda: DiskFullError("full"))
        await adapter.delete_shard(names.shard_of(NAME))
        with trio.fail_after(PATIENCE_S):
            while path.failed_count < 3:
                writer.rejected(1)
                await trio.sleep(0.02)
        await until(lambda: not writer.is_full)
        with trio.fail_after(PATIENCE_S):
            while not await adapter.list_shards(names.shard_of(NAME)):
                await trio.sleep(0.02)
        assert await offer(writer, 2) == (20, 0)


async def test_an_error_that_no_rule_names_ends_no_writer(adapter: StorageAdapter) -> None:
    path = StorePath(adapter)
    async with writing(path, QueueSettings(max_records=20, max_bytes=0)) as writer:
        path.fail(lambda name, _: name == "get_state", carried_out=False, error=lambda: KeyError("reply"))
        with trio.fail_after(PATIENCE_S):
            while not path.failed_count:
                writer.rejected(1)
                await trio.sleep(0.02)
        assert await offer(writer, 2) == (20, 0)


@pytest.mark.parametrize("overflow", list(Overflow))
async def test_a_writer_goes_by_the_settings_that_the_queue_was_given_last(
    adapter: StorageAdapter, overflow: Overflow
) -> None:
    """A broker that still had the old settings set the mode back, so that acknowledged records were in memory again."""
    before = QueueSettings(mode=QueueMode.HYBRID, max_records=20)
    after = QueueSettings(mode=QueueMode.FILE, max_records=40, overflow=overflow)
    async with writing(adapter, before, "old") as writer:
        assert (await look(adapter, NAME)).shard.config.mode is Mode.MEMORY
        await ensure_queue(adapter, NAME, after)
        await writer.look()
        assert (await look(adapter, NAME)).shard.config.mode is Mode.FILE
        assert writer.settings == after


async def test_age_is_counted_from_when_a_record_is_put_in(adapter: StorageAdapter) -> None:
    clock = ManualClock(4_000_000_000_000_000)
    end_us = clock.now_us() + 60_000_000
    writer = QueueWriter(adapter, NAME, QueueSettings(max_age_s=60), writer="w", clock=clock)
    await filled(adapter)
    sooner, later = Record(b"sooner", expires_at_us=end_us - 1), Record(b"later", expires_at_us=end_us + 1)
    pending = writer.put_nowait([Record(b"never"), sooner, later])
    assert pending is not None
    await pending.wait()
    found = await waiting(await driven(adapter))
    assert [(record.value, record.expires_at_us) for record in found] == [
        (b"never", end_us),
        (b"sooner", end_us - 1),
        (b"later", end_us),
    ]


async def test_what_has_waited_too_long_is_counted_as_expired(adapter: StorageAdapter) -> None:
    writer = QueueWriter(adapter, NAME, QueueSettings(max_age_s=60), writer="w", clock=ManualClock(1_000_000))
    await filled(adapter)
    pending = writer.put_nowait(batch(0))
    assert pending is not None
    await pending.wait()
    part = await (await driven(adapter)).read(0, max_bytes=1 << 20, max_wait_s=0)
    assert (list(part.records), part.next_offset, part.skipped) == ([], BATCH, Counts(expired=BATCH))


async def test_a_hybrid_queue_goes_to_files_and_back_without_reordering(adapter: StorageAdapter) -> None:
    settings = QueueSettings(mode=QueueMode.HYBRID, memory_bytes=100_000, max_bytes=0)
    modes: list[Mode] = []

    async def mode() -> Mode:
        return (await look(adapter, NAME)).shard.config.mode

    async with writing(adapter, settings) as writer:
        modes.append(await mode())
        for number in range(30):
            pending = writer.put_nowait(batch(number * BATCH))
            assert pending is not None
            await pending.wait()
        await writer.look()
        modes.append(await mode())
        for number in range(30, 60):
            pending = writer.put_nowait(batch(number * BATCH))
            assert pending is not None
            await pending.wait()
        drain = await driven(adapter)
        seen = [int(record.value[:8]) for record in await waiting(drain)]
        assert seen == list(range(600))
        await drain.confirm(590, Counts(confirmed=590), 1 << 30)
        await writer.look()
        modes.append(await mode())
        pending = writer.put_nowait(batch(600))
        assert pending is not None
        await pending.wait()
        assert [int(record.value[:8]) for record in await waiting(drain)] == list(range(590, 610))
    assert modes == [Mode.MEMORY, Mode.FILE, Mode.MEMORY]


async def test_of_a_hybrid_queue_what_went_to_files_survives(surviving_engine: Engine, opening: Opening) -> None:
    settings = QueueSettings(mode=QueueMode.HYBRID, memory_bytes=50_000, max_bytes=0)
    async with opening() as adapter, writing(adapter, settings) as writer:
        for number in range(10):
            pending = writer.put_nowait(batch(number * BATCH))
            assert pending is not None
            await pending.wait()
        await writer.look()
        pending = writer.put_nowait(batch(100))
        assert pending is not None
        await pending.wait()
    async with opening() as adapter:
        drain = await driven(adapter)
        offset, seen, skipped = 0, [], 0
        while offset < 110:
            part = await drain.read(offset, max_bytes=1 << 20, max_wait_s=0)
            seen += [int(record.value[:8]) for record in part.records]
            skipped += part.skipped.lost
            offset = part.next_offset
        assert len(seen) + skipped == 110
        assert seen == list(range(skipped, 110))
        assert seen[-BATCH:] == list(range(100, 110))
