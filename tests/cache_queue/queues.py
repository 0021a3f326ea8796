"""Queues in tests: filled, driven and read with few words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import QueueDrain, QueueSettings, ensure_queue, names
from broker_adapter.cache_queue.lease import Grant
from broker_adapter.cache_queue.stored import Counts, Lease, Progress, Status
from broker_adapter.state_forms import encode
from shards.format.record import Record, StoredRecord

NAME = "plant"


def records(*values: bytes) -> list[Record]:
    return [Record(value, topic="plant/x", timestamp_us=1_000_000) for value in values]


async def filled(
    adapter: StorageAdapter, *values: bytes, settings: QueueSettings | None = None, queue: str = NAME
) -> None:
    """Make the queue if need be, and put records in."""
    await ensure_queue(adapter, queue, settings or QueueSettings())
    if values:
        await adapter.append(names.shard_of(queue), records(*values))


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
    status = Status("driver", "ok", 0, "", 0, drain.counts, drain.offset, 0.0, 0.0, 0)
    await adapter.put_state(names.status_key(NAME), encode(status))


async def said(
    adapter: StorageAdapter,
    state: str,
    *,
    reason: str = "",
    age_s: int = 0,
    done_offset: int | None = None,
    queue: str = NAME,
) -> None:
    """Store what the driver ``broker-1`` says of itself, and how far it is if that is given."""
    told_us = time.time_ns() // 1000 - age_s * 1_000_000
    next_attempt_us = told_us + 30_000_000 if reason else 0
    status = Status(
        "broker-1", state, told_us - 9_000_000, reason, next_attempt_us, Counts(), done_offset or 0, 3.0, 5.0, told_us
    )
    await adapter.put_state(names.status_key(queue), encode(status))
    if done_offset is not None:
        shard = await adapter.describe_shard(names.shard_of(queue))
        await adapter.put_state(names.progress_key(queue), encode(Progress(shard.shard_id, done_offset)))


async def told(adapter: StorageAdapter, state: str, *, queue: str = NAME, **options: Any) -> None:
    """The same, for a test without a driver: ``broker-1`` also has the lease."""
    await said(adapter, state, queue=queue, **options)
    await adapter.put_state(names.lease_key(queue), encode(Lease("broker-1", "c1", 4, 9)))
