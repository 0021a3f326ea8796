"""``journal://host:port``: the shared journal service behind the storage adapter, over `journal.client`.

The client keeps the connection, sends appends again exactly once and moves subscriptions to the next connection. Added
here is what the adapter promises beyond that: records instead of batches, filtered and cut, and an orderly end.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Literal

import trio

from broker_adapter.adapter import DEFAULT_CREDIT_BYTES, DEFAULT_READ_BYTES, LATEST, Reconnection, StorageAdapter
from broker_adapter.changes import Changes, Committed, check_changes
from broker_adapter.engines.local_appends import encoded
from broker_adapter.engines.open_calls import OpenCalls
from broker_adapter.engines.record_subscription import RecordFeed, RecordSubscription
from broker_adapter.engines.selection import newest_with_key, read_from, read_word
from broker_adapter.results import PendingAppend, ReadResult, StoredBatches
from broker_adapter.shard_admin import DEFAULT_CONFIG
from broker_adapter.subscription import Feed, Subscription, check_follow
from journal.client import Client, SessionTimes, open_client, unique_name
from journal.client import Reconnection as ClientReconnection
from journal.client.address import Address
from journal.protocol.errors import ConnectionLostError
from journal.protocol.messages import CursorCheck as CursorCheckRequest
from journal.protocol.messages import StateDeleteRequest, StatePutRequest, StateScanReply
from shards.errors import InvalidRequestError, OffsetOutOfRangeError, StorageFailedError
from shards.format.batch import BatchHeader
from shards.format.record import Record, StoredRecord
from shards.history import HistoryGap
from shards.model import (
    AckLevel,
    Appended,
    Cursor,
    Mode,
    ProducerIdentity,
    Retention,
    ShardConfig,
    ShardInfo,
    StateValue,
)
from shards.position import Start
from shards.topics.topic_filters import is_filter

_FLUSH_TIMEOUT_S = 5.0
_SCAN_PAGE_VALUES = 1000


@asynccontextmanager
async def open_journal(
    url: str, *, name: str | None = None, ends_at_restore: bool = False, first_within_s: float | None = None
) -> AsyncIterator[StorageAdapter]:
    """Open ``journal://host:port`` (TCP) or ``journal+ws://host:port`` (WebSocket), or either with TLS.

    Who is asking may be in the URL as well; see `journal.client.address`. With ``read=follower`` reads, descriptions
    and lists of shards, and subscriptions without a group go to a server that follows the owner of the store, if one
    answers. They show what that server has of the log so far, so they may not show yet what this adapter has just
    written. Everything else goes to the owner, over a connection of its own.

    ``name`` gets a suffix that makes it unique. For ``ends_at_restore`` and ``first_within_s`` see
    `journal.client.open_client`.

    For other settings of the client open one with `journal.client.open_client` and put a `JournalAdapter` over it.

    Raises:
        InvalidRequestError: The URL names no server.
        AuthenticationError, FormatVersionError: The server refuses this client.
    """
    opened = partial(open_client, ends_at_restore=ends_at_restore, times=SessionTimes(first_within_s=first_within_s))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            opened(Address.to_write(url), name=None if name is None else unique_name(name))
        )
        reader = None
        if Address.parse_all(url)[0].read:
            reader = await stack.enter_async_context(opened(url, name=unique_name(f"{name or 'client'}-reader")))
        yield await stack.enter_async_context(JournalAdapter(client, reader))


class JournalAdapter(StorageAdapter):
    """A `StorageAdapter` over an open client, which it does not close.

    Args:
        client: Connected client; others may use it too.
        reader: The client for reads, for descriptions and lists of shards, and for subscriptions without a group; None
            for the same one.
    """

    def __init__(self, client: Client, reader: Client | None = None) -> None:
        self._client = client
        self._reader = client if reader is None else reader
        self._clients = {client, self._reader}
        self._calls = OpenCalls()

    # Shards

    async def create_shard(
        self, name: str, config: ShardConfig = DEFAULT_CONFIG, *, exist_ok: bool = False
    ) -> ShardInfo:
        return await self._calls.run(self._client.create_shard(name, config, exist_ok=exist_ok))

    async def list_shards(self, topic_filter: str = "#", *, with_segments: bool = False) -> list[ShardInfo]:
        return await self._calls.run(self._reader.list_shards(topic_filter, with_segments=with_segments))

    async def describe_shard(self, name: str) -> ShardInfo:
        return await self._calls.run(self._reader.describe_shard(name))

    async def delete_shard(self, name: str) -> None:
        await self._calls.run(self._client.delete_shard(name))

    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        return await self._calls.run(self._client.set_mode(name, mode))

    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        return await self._calls.run(
            self._client.configure_shard(name, retention=retention, segment_bytes=segment_bytes)
        )

    async def roll(self, name: str) -> ShardInfo:
        return await self._calls.run(self._client.roll(name))

    async def convert(self, name: str) -> ShardInfo:
        return await self._calls.run(self._client.convert(name))

    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        return await self._calls.run(self._client.trim(name, before_offset))

    # Records

    async def append(
        self,
        shard: str,
        records: Sequence[Record] | Sequence[bytes],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
    ) -> Appended:
        self._calls.require_open()
        # Closing waits for appends under way instead of cutting them off, so they need no scope of their own.
        try:
            return await self._client.append(shard, records, ack=ack, expected_offset=expected_offset)
        except ConnectionLostError:
            self._calls.require_open()
            raise

    def append_nowait(
        self,
        shard: str,
        records: Sequence[Record] | Sequence[bytes],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
        is_last: bool = False,
    ) -> PendingAppend:
        self._calls.require_open()
        return self._client.append_nowait(shard, records, ack=ack, expected_offset=expected_offset, is_last=is_last)

    async def wait_for_room(self, size_bytes: int = 1) -> None:
        await self._calls.run(self._client.wait_for_room(size_bytes))

    async def append_batch(
        self, shard: str, batch: bytes, *, ack: AckLevel = AckLevel.DEFAULT, expected_offset: int | None = None
    ) -> Appended:
        self._calls.require_open()
        if (producer_id := BatchHeader.unpack(batch).producer_id) != 0:
            raise InvalidRequestError(
                f"the batch is numbered by producer {producer_id}, but the client numbers what it sends by itself: "
                f"encode the batch without a producer"
            )
        try:
            return await self._client.append_batch(shard, batch, ack=ack, expected_offset=expected_offset)
        except ConnectionLostError:
            self._calls.require_open()
            raise

    async def read(
        self,
        shard: str,
        start: Start | int,
        *,
        max_bytes: int = DEFAULT_READ_BYTES,
        max_records: int | None = None,
        max_wait_s: float = 0.0,
    ) -> ReadResult:
        offset = start if isinstance(start, int) else await self._calls.run(self._reader.find_offset(shard, start))
        fetched = await self._calls.run(self._reader.fetch(shard, offset, max_bytes=max_bytes, max_wait_s=max_wait_s))
        return read_from(fetched.batches, start, offset, fetched.next_offset, max_records=max_records, now_us=_now_us())

    async def find_offset(self, shard: str, start: Start) -> int:
        if start.kind == "offset":
            info = await self.describe_shard(shard)
            if not info.start_offset <= start.value <= info.next_offset:
                raise OffsetOutOfRangeError(shard, start.value, info.start_offset, info.next_offset)
            return start.value
        return await self._calls.run(self._reader.find_offset(shard, start))

    async def read_batches(
        self, shard: str, offset: int, *, max_bytes: int = DEFAULT_READ_BYTES, max_wait_s: float = 0.0
    ) -> StoredBatches:
        fetched = await self._calls.run(self._reader.fetch(shard, offset, max_bytes=max_bytes, max_wait_s=max_wait_s))
        return StoredBatches(fetched.batches, fetched.start_offset, fetched.next_offset)

    async def read_by_key(
        self, shard: str, key: bytes, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        return await self._read_word(shard, "key", key, from_offset, max_bytes)

    async def read_by_tag(
        self, shard: str, tag: str, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        return await self._read_word(shard, "tag", tag.encode(), from_offset, max_bytes)

    async def _read_word(
        self, shard: str, by: Literal["key", "tag"], word: bytes, from_offset: int, max_bytes: int
    ) -> ReadResult:
        fetched = await self._calls.run(
            self._reader.fetch_indexed(shard, by, word, from_offset=from_offset, max_bytes=max_bytes)
        )
        return read_word(fetched.batches, by, word, from_offset, fetched.next_offset, now_us=_now_us())

    async def read_latest(self, shard: str, key: bytes) -> StoredRecord | None:
        fetched = await self._calls.run(self._reader.fetch_indexed(shard, "key", key, latest=True))
        return newest_with_key(fetched.batches, key, now_us=_now_us())

    @asynccontextmanager
    async def subscribe(
        self,
        target: str,
        start: Start = LATEST,
        *,
        group: str | None = None,
        credit_bytes: int = DEFAULT_CREDIT_BYTES,
    ) -> AsyncIterator[Subscription]:
        self._calls.require_open()
        filtered = is_filter(target)
        # Groups store their positions.
        client = self._reader if group is None else self._client
        async with client.subscribe(
            shard=None if filtered else target,
            topic_filter=target if filtered else None,
            start=start,
            group=group,
            credit_bytes=credit_bytes,
        ) as pushed:
            acknowledge = None if group is None else pushed.acknowledge
            yield RecordSubscription(self._calls, pushed.__anext__, _now_us, start, acknowledge)

    @asynccontextmanager
    async def follow(
        self,
        topic_filter: str,
        after_lsn: int | None = None,
        *,
        until_lsn: int | None = None,
        credit_bytes: int = DEFAULT_CREDIT_BYTES,
    ) -> AsyncIterator[Feed]:
        self._calls.require_open()
        check_follow(topic_filter, after_lsn, until_lsn)
        async with self._reader.follow(
            topic_filter, after_lsn, until_lsn=until_lsn, credit_bytes=credit_bytes
        ) as pushed:
            yield RecordFeed(self._calls, pushed.__anext__, _now_us, pushed.start_lsn)

    # Cursors and state

    async def get_cursor(self, shard: str, name: str) -> Cursor | None:
        return await self._calls.run(self._client.get_cursor(shard, name))

    async def list_cursors(self, shard: str) -> list[Cursor]:
        return await self._calls.run(self._client.list_cursors(shard))

    async def commit_cursor(self, shard: str, name: str, offset: int, *, expected_version: int | None = None) -> Cursor:
        return await self._calls.run(self._client.commit_cursor(shard, name, offset, expected_version=expected_version))

    async def delete_cursor(self, shard: str, name: str, *, expected_version: int | None = None) -> None:
        await self._calls.run(self._client.delete_cursor(shard, name, expected_version=expected_version))

    async def get_state(self, key: bytes) -> StateValue | None:
        return await self._calls.run(self._client.get_state(key))

    async def put_state(
        self, key: bytes, value: bytes, *, expected_version: int | None = None, expires_at_us: int = 0
    ) -> StateValue:
        return await self._calls.run(
            self._client.put_state(key, value, expected_version=expected_version, expires_at_us=expires_at_us)
        )

    async def delete_state(self, key: bytes, *, expected_version: int | None = None) -> None:
        await self._calls.run(self._client.delete_state(key, expected_version=expected_version))

    def scan_state(self, prefix: bytes = b"", *, after: bytes | None = None) -> AsyncGenerator[StateValue, None]:
        def page_behind(key: bytes | None) -> Awaitable[StateScanReply]:
            return self._calls.run(self._client.scan_state_page(prefix, after=key, limit=_SCAN_PAGE_VALUES))

        return _scanned(page_behind, after)

    async def commit(self, changes: Changes) -> Committed:
        check_changes(changes)
        appended, values = await self._calls.run(
            self._client.commit(
                [(shard, encoded(records, now_us=_now_us())) for shard, records in changes.appends],
                [StatePutRequest(one.key, one.value, one.expected_version, one.expires_at_us) for one in changes.puts],
                [StateDeleteRequest(one.key, one.expected_version) for one in changes.deletes],
                [CursorCheckRequest(one.shard, one.name, one.max_offset) for one in changes.cursors],
            )
        )
        return Committed(tuple(appended), tuple(values))

    # Other clients of the store

    @property
    def client_name(self) -> str:
        return self._client.name

    async def end_client(self, name: str) -> int:
        return await self._calls.run(self._client.end_client(name))

    # Connections to the store

    @contextmanager
    def before_resending(self, check: Callable[[Reconnection], Awaitable[None]]) -> Iterator[None]:
        async def checked(connection: ClientReconnection) -> None:
            await check(_JournalReconnection(connection))

        with self._client.before_resending(checked):
            yield

    # Producers and life cycle

    @property
    def restores(self) -> tuple[HistoryGap, ...]:
        return self._client.restores

    @property
    def failed_shard_count(self) -> int:
        return sum(client.failed_shards.count for client in self._clients)

    @property
    def unreadable_range_count(self) -> int:
        return sum(client.failed_shards.ranges.count for client in self._clients)

    def append_state(self, shard: str) -> str:
        return self._client.append_state(shard)

    async def wait_failed(self) -> StorageFailedError:
        reason = await self._client.wait_ended()
        while not isinstance(reason, StorageFailedError):
            # Calls raise any other reason themselves; only a failure of the store ends this wait.
            await trio.sleep_forever()
        return reason

    async def open_producer(self, name: str) -> ProducerIdentity:
        return await self._calls.run(self._client.open_producer(name))

    async def aclose(self) -> None:
        if self._calls.closed:
            await trio.lowlevel.checkpoint()
            return
        self._calls.close()
        with trio.CancelScope(deadline=trio.current_time() + _FLUSH_TIMEOUT_S, shield=True):
            await self._client.flush()


class _JournalReconnection:
    """See `Reconnection`."""

    def __init__(self, connection: ClientReconnection) -> None:
        self._connection = connection
        self.get_state = connection.get_state
        self.unanswered_batches = connection.unanswered_batches
        self.withdraw = connection.withdraw

    def scan_state(self, prefix: bytes = b"") -> AsyncGenerator[StateValue, None]:
        def page_behind(key: bytes | None) -> Awaitable[StateScanReply]:
            return self._connection.scan_state_page(prefix, after=key, limit=_SCAN_PAGE_VALUES)

        return _scanned(page_behind, None)


async def _scanned(
    page_behind: Callable[[bytes | None], Awaitable[StateScanReply]], key: bytes | None
) -> AsyncGenerator[StateValue, None]:
    """State values behind a key, page by page."""
    while True:
        page = await page_behind(key)
        for value in page.values:
            yield value
        if not page.more or not page.values:
            return
        key = page.values[-1].key


def _now_us() -> int:
    return time.time_ns() // 1000
