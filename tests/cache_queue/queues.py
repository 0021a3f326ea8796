"""Queues in tests: filled, driven and read with few words."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import Grant, QueueDrain, QueueSettings, ensure_queue, names
from broker_adapter.cache_queue.stored import Status
from broker_adapter.state_forms import encode
from shards.record import Record, StoredRecord

NAME = "plant"


def records(*values: bytes) -> list[Record]:
    return [Record(value, topic="plant/x", timestamp_us=1_000_000) for value in values]


async def filled(adapter: StorageAdapter, *values: bytes, settings: QueueSettings | None = None) -> None:
    """Make the queue if need be, and put records in."""
    await ensure_queue(adapter, NAME, settings or QueueSettings())
    if values:
        await adapter.append(names.shard_of(NAME), records(*values))


async def driven(adapter: StorageAdapter, epoch: int = 1) -> QueueDrain:
    """A drain as a driver with that epoch begins it."""
    drain = QueueDrain(adapter, Grant(NAME, f"driver {epoch}", epoch))
    await drain.begin()
    return drain


async def waiting(drain: QueueDrain) -> Sequence[StoredRecord]:
    """What waits at the drain's offset, all of it."""
    found: list[StoredRecord] = []
    offset = drain.offset
    while True:
        part = await drain.read(offset, max_bytes=1 << 20, max_wait_s=0)
        if part.next_offset == offset:
            return found
        found += part.records
        offset = part.next_offset


async def report(adapter: StorageAdapter, drain: QueueDrain) -> None:
    """Store the drain's counts, as its driver does now and then."""
    status = Status("driver", "closed", 0, "", 0, drain.counts, drain.offset, 0.0, 0.0, 0)
    await adapter.put_state(names.status_key(NAME), encode(status))
