"""``rocksdb:/directory``: the engine of a broker on its own that keeps its data. Needs the extra ``rocksdb``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.engines.local import open_store
from broker_adapter.opening import directory_of
from shards.seams.rocks_store import RocksStore


@asynccontextmanager
async def open_rocksdb(url: str) -> AsyncIterator[StorageAdapter]:
    """Open a directory, which is made if it is not there.

    A durable acknowledgement is given after RocksDB's write-ahead log is synced, once for all calls that wait.

    Raises:
        DataDirectoryError: The directory is in use or cannot be written.
        CorruptionError: What lies in it is damaged.
    """
    directory = directory_of(url)
    store = await trio.to_thread.run_sync(lambda: RocksStore(directory, wal=True))
    async with open_store(store, durable=True) as adapter:
        yield adapter
