"""``memory:``, and any other `OrderedStore` behind the adapter for the time of a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.engines.key_value import KeyValueAdapter
from shards.errors import InvalidRequestError
from shards.seams.clock import Clock, SystemClock
from shards.seams.memory_store import MemoryStore
from shards.seams.store import OrderedStore


@asynccontextmanager
async def open_memory(url: str) -> AsyncIterator[StorageAdapter]:
    """Open ``memory:``. Everything is gone at the end of the block."""
    if url.partition(":")[2]:
        raise InvalidRequestError(f"{url!r}: the engine in memory takes no directory; write memory:")
    async with open_store(MemoryStore(), durable=False) as adapter:
        yield adapter


@asynccontextmanager
async def open_store(
    store: OrderedStore,
    *,
    durable: bool,
    clock: Clock | None = None,
    max_batch_bytes: int = 8 << 20,
    upkeep_interval_s: float = 1.0,
) -> AsyncIterator[KeyValueAdapter]:
    """Serve a store through the adapter for the time of an ``async with`` block, then close it.

    Args:
        store: The store; nobody else may use it meanwhile.
        durable: Whether its `flush` makes anything safe. If not, every acknowledgement says `AckLevel.MEMORY`.
        clock: Tells timestamps, expiry and age; the machine's clock if None.
        max_batch_bytes: Largest batch that is accepted.
        upkeep_interval_s: How often retention by age and expired state are seen to.
    """
    try:
        adapter = KeyValueAdapter(store, durable=durable, clock=clock or SystemClock(), max_batch_bytes=max_batch_bytes)
        async with background_tasks() as tasks:
            tasks.start_soon(adapter.run_commits)
            tasks.start_soon(adapter.run_upkeep, upkeep_interval_s)
            try:
                yield adapter
            finally:
                with trio.CancelScope(shield=True):
                    await adapter.aclose()
    finally:
        store.close()
