"""Queues whose store, a real server, is killed with SIGKILL: what is there afterwards, and what is counted."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import Overflow, QueueMode, QueueSettings, QueueWriter, ensure_queue, look
from broker_adapter.cache_queue.cli.view import put_in
from broker_adapter.cache_queue.progress import added
from broker_adapter.cache_queue.stored import Counts, WriterCounts
from shards.format.record import Record
from tests.cache_queue.queues import NAME, driven, waiting
from tests.faults.processes import command
from tests.mqtt.cluster.processes import Process
from tests.patience import PATIENCE_S
from tests.ports import free_port


@attrs.frozen
class Store:
    """A server that can be killed, and the way to it."""

    process: Process
    adapter: StorageAdapter

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self.process.end, signal.SIGKILL)

    async def start(self) -> None:
        await trio.to_thread.run_sync(self.process.start)


@asynccontextmanager
async def killable(directory: Path) -> AsyncIterator[Store]:
    port = free_port()
    process = Process(command(directory / "data", f"listen.tcp=127.0.0.1:{port}"), directory / "journal.log")
    await trio.to_thread.run_sync(process.start)
    try:
        async with open_adapter(f"journal://127.0.0.1:{port}") as adapter:
            yield Store(process, adapter)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.end, signal.SIGKILL)


@asynccontextmanager
async def writing(store: Store, settings: QueueSettings, name: str = "w") -> AsyncIterator[QueueWriter]:
    async with trio.open_nursery() as nursery:
        writer = QueueWriter(store.adapter, NAME, settings, writer=name)
        await nursery.start(writer.run)
        yield writer
        nursery.cancel_scope.cancel()


async def put(writer: QueueWriter, count: int) -> None:
    """Put records in, and return when all are acknowledged."""
    for number in range(count):
        pending = writer.put_nowait([Record(b"%d" % number, topic="t")])
        assert pending is not None
        await pending.wait()


@pytest.mark.slow("kills servers")
@pytest.mark.parametrize("mode", [QueueMode.MEMORY, QueueMode.HYBRID])
async def test_what_is_acknowledged_after_a_change_to_files_is_there_after_a_kill(
    tmp_path: Path, mode: QueueMode
) -> None:
    """`queue show` said file, and a hundred acknowledged messages were gone."""
    async with killable(tmp_path) as store, writing(store, QueueSettings(mode=mode)) as writer:
        await put(writer, 1)
        await ensure_queue(store.adapter, NAME, QueueSettings(mode=QueueMode.FILE))
        await put(writer, 100)
        await store.kill()
        await store.start()
        values = [record.value for record in await waiting(await driven(store.adapter))]
        assert values == [b"%d" % number for number in range(100)]


@pytest.mark.slow("kills servers")
@pytest.mark.parametrize(
    ("mode", "overflow"), [(QueueMode.MEMORY, Overflow.REJECT), (QueueMode.HYBRID, Overflow.DROP_NEWEST)]
)
async def test_a_queue_in_memory_is_empty_after_a_kill_and_every_record_is_in_one_count(
    tmp_path: Path, mode: QueueMode, overflow: Overflow
) -> None:
    """An empty queue counted 1,048,577 records: `reject` refused every publish, `drop_newest` threw all away."""
    settings = QueueSettings(mode=mode, max_records=1000, overflow=overflow)
    async with killable(tmp_path) as store, writing(store, settings) as writer:
        for kill in (1, 2):
            await put(writer, 50)
            await store.kill()
            await store.start()
            # The first is taken although the writer has not looked since.
            await put(writer, 10)
            await writer.look()
            state = await look(store.adapter, NAME)
            assert state.depth.record_count == 10
            assert put_in(state) == 60 * kill
        assert not writer.refuses
        assert state.writers.get("w", WriterCounts()) == WriterCounts()
        drain = await driven(store.adapter)
        offset, taken = 0, 0
        with trio.fail_after(PATIENCE_S):
            while taken < 10:
                part = await drain.read(offset, max_bytes=1 << 20, max_wait_s=1)
                taken += len(part.records)
                outcome = added(part.skipped, Counts(confirmed=len(part.records)))
                await drain.confirm(part.next_offset, outcome, 0)
                offset = part.next_offset
        assert drain.counts == Counts(confirmed=10, lost=110)


@pytest.mark.slow("kills servers")
async def test_a_writer_that_dies_with_the_store_has_counted_what_it_put_in(tmp_path: Path) -> None:
    """What it counted at its last look applies: here that was after the last record."""
    settings = QueueSettings(mode=QueueMode.MEMORY)
    async with killable(tmp_path) as store:
        async with writing(store, settings) as writer:
            await put(writer, 30)
            await writer.look()
        await store.kill()
        await store.start()
        async with writing(store, settings, "another"):
            state = await look(store.adapter, NAME)
            assert (state.depth.record_count, state.lost_count, put_in(state)) == (0, 30, 30)
