"""The engine of a broker on its own: one `OrderedStore`, in memory or in RocksDB, behind the storage adapter.

This module puts the parts together: it takes the calls, waits for commits and wakes readers. What becomes of an append
is decided in `stored_appends`, and what is dropped again in `upkeep`. How shards lie in the store, group commit,
producers, cursors and state, subscriptions and feeds have modules of their own beside it too.

Decisions take effect in one step between two awaits, so calls never see each other half done. Readers see records,
cursors and state only when they are committed, so nothing they have seen disappears in a crash.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import trio

from broker_adapter.adapter import DEFAULT_CONFIG, DEFAULT_CREDIT_BYTES, DEFAULT_READ_BYTES, LATEST, StorageAdapter
from broker_adapter.changes import Changes, Committed, check_changes
from broker_adapter.engines.committed_views import CommittedCursors, CommittedState, CommittedWrites
from broker_adapter.engines.group_commit import GroupCommit
from broker_adapter.engines.local_appends import AppendWindow, encoded
from broker_adapter.engines.local_feeds import LocalFeeds
from broker_adapter.engines.local_subscriptions import GROUP_CURSOR_PREFIX, LocalSubscription, Watchers
from broker_adapter.engines.producer_table import ProducerTable
from broker_adapter.engines.shard_table import ShardTable
from broker_adapter.engines.stored_appends import StoredAppends
from broker_adapter.engines.stored_shard import StoredShard
from broker_adapter.engines.upkeep import Upkeep
from broker_adapter.feed import Feed
from broker_adapter.results import PendingAppend, ReadResult, StoredBatches
from broker_adapter.subscription import Subscription
from shards.errors import BatchError, InvalidRequestError, OffsetOutOfRangeError, ShardExistsError
from shards.format import batch as batches
from shards.format.record import Record, StoredRecord
from shards.model import (
    AckLevel,
    Appended,
    Cursor,
    Mode,
    ProducerIdentity,
    Retention,
    SegmentKind,
    ShardConfig,
    ShardInfo,
    StateValue,
)
from shards.position import Start
from shards.seams.clock import Clock
from shards.seams.store import Mutations, OrderedStore
from shards.topics.names import validate_name, validate_shard_name
from shards.topics.topic_filters import is_filter, matches, validate_filter


class KeyValueAdapter(StorageAdapter):
    """A `StorageAdapter` over an `OrderedStore`; made by `open_store`, which runs its tasks."""

    def __init__(self, store: OrderedStore, *, durable: bool, clock: Clock, max_batch_bytes: int) -> None:
        self._clock = clock
        self._kind = SegmentKind.LOG if durable else SegmentKind.MEMORY
        self._table = ShardTable(store)
        self._commit = GroupCommit(store, durable=durable)
        self._writes = CommittedWrites(self._commit)
        self._cursors = CommittedCursors(store, self._writes, self._table)
        self._state = CommittedState(store, self._writes, self._table, clock)
        self._producers = ProducerTable(store)
        self._watchers = Watchers(self._commit_group_position)
        self._feeds = LocalFeeds(self._table, clock.now_us)
        self._window = AppendWindow()
        self._appends = StoredAppends(
            table=self._table,
            commit=self._commit,
            producers=self._producers,
            committed=self._feeds.committed,
            window=self._window,
            clock=clock,
            durable=durable,
            max_batch_bytes=max_batch_bytes,
            show=self._advance,
        )
        self._upkeep = Upkeep(self._table, self._commit, self._state, self._producers, self._watchers, clock)
        self._moved: dict[StoredShard, trio.Event] = {}
        self._closed = False

    # Tasks

    async def run_commits(self) -> None:
        """The committer; runs until cancelled."""
        await self._commit.run()

    async def run_upkeep(self, interval_s: float) -> None:
        """Retention by age, expired state and leftovers of deleted shards; runs until cancelled."""
        await self._upkeep.run(interval_s)

    # Shards

    async def create_shard(
        self, name: str, config: ShardConfig = DEFAULT_CONFIG, *, exist_ok: bool = False
    ) -> ShardInfo:
        self._require_open()
        validate_shard_name(name)
        if name in self._table:
            if not exist_ok:
                raise ShardExistsError(f"shard {name!r} exists already; use it, or delete it first")
            await self._writes.settled()
            return self._shard(name).info()
        mutations = Mutations()
        shard = self._table.create(mutations, name, config, self._clock.now_us())
        self._watchers.shard_created(shard, lambda group: self._first_offset(shard, Start.earliest(), group))
        await self._writes.write(mutations)
        return shard.info()

    async def list_shards(self, topic_filter: str = "#") -> list[ShardInfo]:
        self._require_open()
        validate_filter(topic_filter)
        await trio.lowlevel.checkpoint()
        return [shard.info() for shard in self._table if matches(topic_filter, shard.name)]

    async def describe_shard(self, name: str) -> ShardInfo:
        shard = self._shard(name)
        await trio.lowlevel.checkpoint()
        return shard.info(kind=self._kind)

    async def delete_shard(self, name: str) -> None:
        shard = self._shard(name)
        mutations = Mutations()
        self._table.delete(mutations, shard)
        self._cursors.delete_all(mutations, shard)
        self._watchers.shard_deleted(shard)
        self._feeds.deleted(shard)
        self._wake_readers(shard)
        await self._writes.write(mutations)
        await self._upkeep.sweep(shard.shard_id)

    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        shard = self._shard(name)
        mutations = Mutations()
        if mode is Mode.FILE:
            shard.release_reservation(mutations)
        return await self._configure(shard, mutations, mode=mode)

    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        shard = self._shard(name)
        changes: dict[str, object] = {"retention": retention, "segment_bytes": segment_bytes}
        info = await self._configure(
            shard, Mutations(), **{setting: value for setting, value in changes.items() if value is not None}
        )
        if retention is not None and not shard.deleted:
            await self._upkeep.retain(shard)
            return shard.info(kind=self._kind)
        return info

    async def seal(self, name: str, *, wait: bool = False) -> ShardInfo:
        return await self.describe_shard(name)

    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        shard = self._shard(name)
        if before_offset > shard.visible_offset:
            raise OffsetOutOfRangeError(name, before_offset, shard.start_offset, shard.visible_offset)
        await self._upkeep.drop_below(shard, before_offset)
        await self._commit.request().wait()
        return shard.info(kind=self._kind)

    # Records

    async def append(
        self,
        shard: str,
        records: Sequence[Record] | Sequence[bytes],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
    ) -> Appended:
        self._require_open()
        return await self._append(shard, encoded(records, now_us=self._clock.now_us()), ack, expected_offset)

    def append_nowait(
        self,
        shard: str,
        records: Sequence[Record] | Sequence[bytes],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
    ) -> PendingAppend:
        self._require_open()
        return self._appends.begin(shard, encoded(records, now_us=self._clock.now_us()), ack, expected_offset)

    async def wait_for_room(self, size_bytes: int = 1) -> None:
        self._require_open()
        await self._window.wait_for_room(size_bytes)

    async def append_batch(
        self, shard: str, batch: bytes, *, ack: AckLevel = AckLevel.DEFAULT, expected_offset: int | None = None
    ) -> Appended:
        header = batches.verify_body(batch)
        if header.is_gap or header.size_bytes != len(batch):
            raise BatchError(
                f"an append takes exactly one batch with records: {len(batch)} bytes were given, "
                f"the batch has {header.size_bytes} bytes and {header.record_count} records"
            )
        return await self._append(shard, batch, ack, expected_offset)

    async def _append(self, name: str, batch: bytes, ack: AckLevel, expected_offset: int | None) -> Appended:
        if not self._window.has_room(len(batch)):
            await self._window.wait_for_room(len(batch))
        self._require_open()
        appended = await self._appends.begin(name, batch, ack, expected_offset).wait()
        if not self._closed and name in self._table and (shard := self._table[name]).passes_bound():
            await self._upkeep.retain(shard)
        return appended

    async def read(
        self,
        shard: str,
        start: Start | int,
        *,
        max_bytes: int = DEFAULT_READ_BYTES,
        max_records: int | None = None,
        max_wait_s: float = 0.0,
    ) -> ReadResult:
        offset = await self._wait_beyond(shard, self._shard(shard).offset_of(start), max_wait_s)
        return self._shard(shard).read(
            offset, max_bytes=max_bytes, max_records=max_records, now_us=self._clock.now_us()
        )

    async def find_offset(self, shard: str, start: Start) -> int:
        found = self._shard(shard)
        await trio.lowlevel.checkpoint()
        return found.offset_of(start)

    async def read_batches(
        self, shard: str, offset: int, *, max_bytes: int = DEFAULT_READ_BYTES, max_wait_s: float = 0.0
    ) -> StoredBatches:
        offset = await self._wait_beyond(shard, self._shard(shard).offset_of(offset), max_wait_s)
        return self._shard(shard).read_batches(offset, max_bytes=max_bytes)

    async def _wait_beyond(self, name: str, offset: int, max_wait_s: float) -> int:
        """Wait for a record at an offset or for the time to pass; return the offset if it is still in range."""
        shard = self._shard(name)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(max_wait_s):
            while offset >= shard.visible_offset and max_wait_s > 0:
                await self._moved.setdefault(shard, trio.Event()).wait()
                shard = self._shard(name)
        return self._shard(name).offset_of(offset)

    async def read_by_key(
        self, shard: str, key: bytes, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        return await self._read_word(shard, b"k", key, from_offset, max_bytes)

    async def read_by_tag(
        self, shard: str, tag: str, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        return await self._read_word(shard, b"t", tag.encode(), from_offset, max_bytes)

    async def _read_word(self, name: str, kind: bytes, word: bytes, from_offset: int, max_bytes: int) -> ReadResult:
        shard = self._shard(name)
        await trio.lowlevel.checkpoint()
        return shard.read_word(kind, word, from_offset, max_bytes=max_bytes, now_us=self._clock.now_us())

    async def read_latest(self, shard: str, key: bytes) -> StoredRecord | None:
        found = self._shard(shard)
        await trio.lowlevel.checkpoint()
        return found.latest_with_key(key, now_us=self._clock.now_us())

    @asynccontextmanager
    async def subscribe(
        self,
        target: str,
        start: Start = LATEST,
        *,
        group: str | None = None,
        credit_bytes: int = DEFAULT_CREDIT_BYTES,
    ) -> AsyncIterator[Subscription]:
        self._require_open()
        subscription = LocalSubscription(self._watchers, self._clock.now_us, group, credit_bytes)
        if group is not None:
            validate_name("cursor name of the group", GROUP_CURSOR_PREFIX + group)
        if is_filter(target):
            validate_filter(target)
            if start.kind == "offset":
                raise InvalidRequestError(
                    f"an offset counts within one shard and says nothing for the filter {target!r}: "
                    f"begin at 'earliest', 'latest', a time or an lsn"
                )
            shards = [shard for shard in self._table if matches(target, shard.name)]
        else:
            shards = [self._shard(target)]
        offsets = [self._first_offset(shard, start, group) for shard in shards]
        if is_filter(target):
            self._watchers.watch_filter(subscription, target)
        for shard, offset in zip(shards, offsets, strict=True):
            self._watchers.watch(subscription, shard, offset)
        try:
            yield subscription
        finally:
            subscription.end()
            self._watchers.leave(subscription)

    @asynccontextmanager
    async def follow(
        self,
        topic_filter: str,
        after_lsn: int | None = None,
        *,
        until_lsn: int | None = None,
        credit_bytes: int = DEFAULT_CREDIT_BYTES,
    ) -> AsyncIterator[Feed]:
        self._require_open()
        async with self._feeds.follow(topic_filter, after_lsn, until_lsn, credit_bytes) as feed:
            yield feed

    def _first_offset(self, shard: StoredShard, start: Start, group: str | None) -> int:
        if group is None:
            return shard.offset_of(start)
        offset = self._cursors.offset_nowait(shard, GROUP_CURSOR_PREFIX + group)
        if offset is None:
            offset = shard.offset_of(start)
            self._commit_group_position(shard, GROUP_CURSOR_PREFIX + group, offset)
        return max(offset, shard.start_offset)

    def _commit_group_position(self, shard: StoredShard, name: str, offset: int) -> None:
        """Store a group's position; it becomes durable with whatever is committed next."""
        if not shard.deleted and not self._closed:
            self._cursors.set_nowait(shard, name, offset)
            self._commit.request()

    # Cursors and state

    async def get_cursor(self, shard: str, name: str) -> Cursor | None:
        return await self._cursors.get(self._shard(shard), name)

    async def list_cursors(self, shard: str) -> list[Cursor]:
        return await self._cursors.list(self._shard(shard))

    async def commit_cursor(self, shard: str, name: str, offset: int, *, expected_version: int | None = None) -> Cursor:
        validate_name("cursor name", name)
        return await self._cursors.commit(self._shard(shard), name, offset, expected_version)

    async def delete_cursor(self, shard: str, name: str, *, expected_version: int | None = None) -> None:
        await self._cursors.delete(self._shard(shard), name, expected_version)

    async def get_state(self, key: bytes) -> StateValue | None:
        self._require_open()
        return await self._state.get(key)

    async def put_state(
        self, key: bytes, value: bytes, *, expected_version: int | None = None, expires_at_us: int = 0
    ) -> StateValue:
        self._require_open()
        return await self._state.put(key, value, expected_version, expires_at_us)

    async def delete_state(self, key: bytes, *, expected_version: int | None = None) -> None:
        self._require_open()
        await self._state.delete(key, expected_version)

    async def scan_state(self, prefix: bytes = b"", *, after: bytes | None = None) -> AsyncGenerator[StateValue, None]:
        self._require_open()
        async with aclosing(self._state.scan(prefix, after)) as values:
            async for value in values:
                yield value
                self._require_open()

    async def commit(self, changes: Changes) -> Committed:
        self._require_open()
        check_changes(changes)
        now_us = self._clock.now_us()
        encoded_batches = [(self._shard(name), encoded(records, now_us=now_us)) for name, records in changes.appends]
        for _, batch in encoded_batches:
            self._appends.check_size(batch)
        keys = self._state.check_changes((*changes.puts, *changes.deletes))
        self._cursors.check_all(changes.cursors)
        mutations = Mutations()
        appended, show = self._appends.place(mutations, encoded_batches)
        values = self._state.change(mutations, changes.puts, changes.deletes)
        await self._writes.write(mutations, *keys, on_durable=show)
        return Committed(appended, values)

    # Producers and life cycle

    async def open_producer(self, name: str) -> ProducerIdentity:
        self._require_open()
        validate_name("producer name", name)
        mutations = Mutations()
        identity = self._producers.open(mutations, name)
        await self._writes.write(mutations)
        return identity

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._watchers.close()
        self._feeds.close()
        for moved in self._moved.values():
            moved.set()
        if self._commit.has_failed:
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope(shield=True):
            mutations = Mutations()
            self._table.close(mutations)
            # Reservations may be forgotten only when what they cover is durable, which one flush makes of both.
            await self._writes.write(mutations)

    # Steps that several of the above share

    def _require_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the storage adapter is closed")

    def _shard(self, name: str) -> StoredShard:
        self._require_open()
        return self._table[name]

    async def _configure(self, shard: StoredShard, mutations: Mutations, **changes: object) -> ShardInfo:
        shard.configure(mutations, **changes)
        await self._writes.write(mutations)
        return shard.info(kind=self._kind)

    def _advance(self, shard: StoredShard, visible_offset: int) -> None:
        self._feeds.advance(shard, visible_offset)
        self._watchers.shard_advanced(shard)
        self._wake_readers(shard)

    def _wake_readers(self, shard: StoredShard) -> None:
        moved = self._moved.pop(shard, None)
        if moved is not None:
            moved.set()
