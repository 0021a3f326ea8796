"""A store that a broker can be cut off from, so that it dies without a last word."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import Changes, Committed
from broker_adapter.results import PendingAppend
from journal.protocol.errors import ConnectionLostError
from shards.format.record import Record
from shards.history import HistoryGap
from shards.model import StateValue


class SeveredStore:
    """Passes everything on to a store until it is severed; from then on nothing gets through and nothing comes back.

    It has the methods of `StorageAdapter` that brokers use; each is looked up when it is called.
    """

    def __init__(self, store: StorageAdapter) -> None:
        self._store = store
        self.is_severed = False

    def sever(self) -> None:
        """Lose the store permanently, in the middle of any step."""
        self.is_severed = True

    @property
    def client_name(self) -> str:
        return self._store.client_name

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            self._require()
            result = await method(*arguments, **options)
            self._require()
            return result

        return call

    @property
    def restores(self) -> tuple[HistoryGap, ...]:
        """The store's own."""
        return self._store.restores

    @property
    def unreadable_range_count(self) -> int:
        """The store's own."""
        return self._store.unreadable_range_count

    @property
    def before_resending(self) -> Any:
        """The store's own: nothing is asked for there before the connection is lost."""
        return self._store.before_resending

    def _require(self) -> None:
        if self.is_severed:
            raise ConnectionLostError("the store is lost for this broker")

    def append_nowait(self, shard: str, records: Sequence[Record] | Sequence[bytes], **options: Any) -> PendingAppend:
        self._require()
        return self._store.append_nowait(shard, records, **options)

    async def commit(self, changes: Changes) -> Committed:
        self._require()
        done = await self._store.commit(changes)
        self._require()
        return done

    async def scan_state(self, prefix: bytes = b"", *, after: bytes | None = None) -> AsyncGenerator[StateValue, None]:
        self._require()
        async with aclosing(self._store.scan_state(prefix, after=after)) as values:
            async for value in values:
                yield value
                self._require()

    @asynccontextmanager
    async def subscribe(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        self._require()
        async with self._store.subscribe(*arguments, **options) as subscription:
            yield subscription

    @asynccontextmanager
    async def follow(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        self._require()
        async with self._store.follow(*arguments, **options) as feed:
            yield feed
