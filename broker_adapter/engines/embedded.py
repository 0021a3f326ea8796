"""``embedded:/directory``, also called ``rocksdb:``, and ``memory:``: the journal engine inside the broker's process.

A broker on its own gets what the journal service does (group commit over all shards, memory and file mode, log
segments) without a second process. Only one process at a time can have the directory open, which needs the extra
``embedded``. Without a directory everything is in memory, for as long as the adapter is open. This module and
`broker_adapter.engines.pulled_batches` are the only ones of the adapter that know the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import trio

from broker_adapter.adapter import DEFAULT_CREDIT_BYTES, DEFAULT_READ_BYTES, LATEST, StorageAdapter
from broker_adapter.changes import Changes, Committed, check_changes
from broker_adapter.engines.local_appends import AppendWindow, LocalAppend, encoded
from broker_adapter.engines.open_calls import OpenCalls
from broker_adapter.engines.pulled_batches import PulledBatches
from broker_adapter.engines.record_subscription import RecordFeed, RecordSubscription
from broker_adapter.engines.selection import newest_with_key, read_from, read_word
from broker_adapter.opening import directory_of
from broker_adapter.results import PendingAppend, ReadResult, StoredBatches
from broker_adapter.shard_admin import DEFAULT_CONFIG
from broker_adapter.subscription import Feed, Subscription, check_follow
from journal.engine import Engine, SubscriptionTarget, open_engine, open_memory_engine
from journal.engine.time_slice import TimeSlice
from journal.engine.write.transactions import CursorCheck, Delete, Put
from journal.settings.server import ConversionConfig, ServerConfig, ShardsConfig, StorageConfig
from journal.settings.values import MIB, TIB
from shards.errors import InvalidRequestError, OverloadedError, StorageError, StorageFailedError
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
from shards.seams.clock import Clock
from shards.segments.read_slices import Place, ReadSlice
from shards.segments.shard import Shard
from shards.subscriptions.unreadable_ranges import UnreadableRanges
from shards.topics.topic_filters import is_filter, validate_filter

_SCAN_PAGE_VALUES: Final = 200
_MOST_PLACES: Final = 1000

BROKER_CONFIG: Final = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=32 * MIB,
        journal_budget_bytes=128 * MIB,
        segment_bytes=64 * MIB,
        tail_budget_bytes=64 * MIB,
        memory_budget_bytes=256 * MIB,
        disk_reserve_bytes=64 * MIB,
    ),
    shards=ShardsConfig(memory_max_bytes=16 * MIB),
    conversion=ConversionConfig(enabled=False),
)
"""Settings for an engine that shares a machine and a process with a broker: about a quarter of a server's memory and
disk, and shorter restarts. No process that writes Parquet files, unless ``conversion`` is switched on. Sections
``listen`` and ``log`` and the limits of connections mean nothing here."""


@asynccontextmanager
async def open_embedded(
    url: str, config: ServerConfig = BROKER_CONFIG, *, to_read: bool = False
) -> AsyncIterator[StorageAdapter]:
    """Open a directory, which is made if it is not there, and recover what lies in it.

    Args:
        url: ``embedded:/directory``.
        config: Sizes and limits; the directory may be opened with others the next time.
        to_read: See what it holds and leave it within moments. A server that is started meanwhile waits for that; a
            directory that is in use, or that does not exist, is refused at once.

    Raises:
        DataDirectoryError: The directory is in use, is read-only, or belongs to something else.
        CorruptionError: Acknowledged data is damaged and it cannot be told whose.
        FormatVersionError: A newer program wrote the directory.
    """
    async with open_engine(directory_of(url), config, to_read=to_read) as engine, EmbeddedAdapter(engine) as adapter:
        yield adapter


MEMORY_CONFIG: Final = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=16 * MIB,
        journal_budget_bytes=128 * MIB,
        segment_bytes=8 * MIB,
        memory_budget_bytes=16 * TIB,
        disk_reserve_bytes=0,
        retention_interval_s=1,
    ),
    shards=ShardsConfig(memory_max_bytes=16 * TIB),
    conversion=ConversionConfig(enabled=False),
)
"""Settings for an engine in memory. Shards keep what their own retention keeps, in either mode; small segments let it
drop records in small steps."""


@asynccontextmanager
async def open_memory(url: str, clock: Clock | None = None) -> AsyncIterator[StorageAdapter]:
    """Open ``memory:``. Everything is gone at the end of the block; every acknowledgement says `AckLevel.MEMORY`.

    Args:
        url: ``memory:``.
        clock: Tells timestamps, expiry and age; the machine's clock if None.

    Raises:
        InvalidRequestError: The URL names more than that.
    """
    if url.partition(":")[2]:
        raise InvalidRequestError(f"{url!r}: the engine in memory takes no directory; write memory:")
    async with open_memory_engine(MEMORY_CONFIG, clock) as engine, EmbeddedAdapter(engine) as adapter:
        yield adapter


class EmbeddedAdapter(StorageAdapter):
    """A `StorageAdapter` over an open engine, which it does not close."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._calls = OpenCalls()
        self._unreadable = UnreadableRanges()
        self._appends = _Appends(engine)
        # Where the last read of each shard ended, by shard id: the next one needs no search if it continues there.
        self._places: dict[int, Place] = {}

    @property
    def restores(self) -> tuple[HistoryGap, ...]:
        return tuple(self._engine.restores())

    @property
    def unreadable_range_count(self) -> int:
        return self._unreadable.count

    async def wait_failed(self) -> StorageFailedError:
        return await self._engine.wait_failed()

    # Shards

    async def create_shard(
        self, name: str, config: ShardConfig = DEFAULT_CONFIG, *, exist_ok: bool = False
    ) -> ShardInfo:
        return await self._calls.run(self._engine.create_shard(name, config, exist_ok=exist_ok))

    async def list_shards(self, topic_filter: str = "#", *, with_segments: bool = False) -> list[ShardInfo]:
        self._calls.require_open()
        validate_filter(topic_filter)
        engine = self._engine
        infos: list[ShardInfo] = []
        scan, step = engine.scan_names(topic_filter), TimeSlice()
        while (names := await scan.more()) is not None:
            for name in names:
                if engine.shard_id(name) is not None:
                    infos.append(engine.describe_shard(name, with_segments=with_segments))
                if step.is_over:
                    await step.rest()
        return infos

    async def describe_shard(self, name: str) -> ShardInfo:
        shard = self._shard(name)
        await trio.lowlevel.checkpoint()
        return shard.info(with_segments=True)

    async def delete_shard(self, name: str) -> None:
        await self._calls.run(self._engine.delete_shard(name))

    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        return await self._calls.run(self._engine.set_mode(name, mode))

    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        return await self._calls.run(
            self._engine.configure_shard(name, retention=retention, segment_bytes=segment_bytes)
        )

    async def roll(self, name: str) -> ShardInfo:
        return await self._calls.run(self._engine.roll(name))

    async def convert(self, name: str) -> ShardInfo:
        return await self._calls.run(self._engine.convert(name) if self._engine.converts else self._engine.roll(name))

    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        return await self._calls.run(self._engine.trim(name, before_offset))

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
        return await self._append(shard, self._encode(records), ack, expected_offset, is_sound=True)

    async def append_batch(
        self, shard: str, batch: bytes, *, ack: AckLevel = AckLevel.DEFAULT, expected_offset: int | None = None
    ) -> Appended:
        self._calls.require_open()
        return await self._append(shard, batch, ack, expected_offset, is_sound=False)

    async def _append(
        self, name: str, batch: bytes, ack: AckLevel, expected_offset: int | None, *, is_sound: bool
    ) -> Appended:
        # Closing waits for what was taken; only what still waits for room ends there.
        if not self._appends.has_room(len(batch)):
            await self._calls.run(self._appends.wait_for_room(len(batch)))
        shard = self._shard(name)
        return await self._appends.add(shard, batch, ack, expected_offset, is_sound=is_sound).wait()

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
        batch = self._encode(records)
        try:
            found = self._engine.shard(shard)
        except StorageError as error:
            return self._appends.refuse(error)
        return self._appends.add(found, batch, ack, expected_offset, is_sound=True)

    async def wait_for_room(self, size_bytes: int = 1) -> None:
        await self._calls.run(self._appends.wait_for_room(size_bytes))

    def _encode(self, records: Sequence[Record] | Sequence[bytes]) -> bytes:
        return encoded(records, now_us=self._engine.now_us())

    async def read(
        self,
        shard: str,
        start: Start | int,
        *,
        max_bytes: int = DEFAULT_READ_BYTES,
        max_records: int | None = None,
        max_wait_s: float = 0.0,
    ) -> ReadResult:
        return await self._calls.run(self._read(shard, start, max_bytes, max_records, max_wait_s))

    async def _read(
        self, name: str, start: Start | int, max_bytes: int, max_records: int | None, max_wait_s: float
    ) -> ReadResult:
        shard = self._shard(name)
        offset = start if isinstance(start, int) else await self._engine.find_offset(shard, start)
        extent = await self._extent(shard, offset, max_bytes, max_wait_s)
        return read_from(
            b"".join(extent.buffers),
            start,
            offset,
            extent.next_offset,
            max_records=max_records,
            now_us=self._engine.now_us(),
        )

    async def find_offset(self, shard: str, start: Start) -> int:
        found = self._shard(shard)
        await trio.lowlevel.checkpoint()
        return await self._calls.run(self._engine.find_offset(found, start))

    async def read_batches(
        self, shard: str, offset: int, *, max_bytes: int = DEFAULT_READ_BYTES, max_wait_s: float = 0.0
    ) -> StoredBatches:
        found = self._shard(shard)
        extent = await self._calls.run(self._extent(found, offset, max_bytes, max_wait_s))
        return StoredBatches(b"".join(extent.buffers), found.start_offset, extent.next_offset)

    async def _extent(self, shard: Shard, offset: int, max_bytes: int, max_wait_s: float) -> ReadSlice:
        self._engine.check_range(shard, offset)
        await trio.lowlevel.checkpoint()
        await self._engine.wait_beyond(shard, offset, max_wait_s)
        extent = await self._engine.read(shard, offset, max_bytes, self._places.get(shard.shard_id))
        if extent.place is not None:
            self._places[shard.shard_id] = extent.place
            if len(self._places) > _MOST_PLACES:
                del self._places[next(iter(self._places))]
        return extent

    async def read_by_key(
        self, shard: str, key: bytes, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        return await self._calls.run(self._read_word(shard, "key", key, from_offset, max_bytes))

    async def read_by_tag(
        self, shard: str, tag: str, *, from_offset: int = 0, max_bytes: int = DEFAULT_READ_BYTES
    ) -> ReadResult:
        return await self._calls.run(self._read_word(shard, "tag", tag.encode(), from_offset, max_bytes))

    async def _read_word(
        self, name: str, by: Literal["key", "tag"], word: bytes, from_offset: int, max_bytes: int
    ) -> ReadResult:
        await trio.lowlevel.checkpoint()
        extent = await self._engine.read_indexed(self._shard(name), by, word, from_offset, max_bytes, latest=False)
        return read_word(
            b"".join(extent.buffers), by, word, from_offset, extent.next_offset, now_us=self._engine.now_us()
        )

    async def read_latest(self, shard: str, key: bytes) -> StoredRecord | None:
        return await self._calls.run(self._read_latest(shard, key))

    async def _read_latest(self, name: str, key: bytes) -> StoredRecord | None:
        await trio.lowlevel.checkpoint()
        extent = await self._engine.read_indexed(self._shard(name), "key", key, 0, DEFAULT_READ_BYTES, latest=True)
        return newest_with_key(b"".join(extent.buffers), key, now_us=self._engine.now_us())

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
        pulled = PulledBatches(
            shard=None if filtered else target, credit_bytes=credit_bytes, unreadable=self._unreadable
        )
        subscription = await self._calls.run(
            self._engine.subscribe(
                SubscriptionTarget(
                    shard=None if filtered else target, topic_filter=target if filtered else None, group=group
                ),
                start=start,
                on_ready=pulled.wake,
                credit_bytes=pulled.credit_bytes,
            )
        )
        pulled.begin(subscription)
        acknowledge = None if group is None else pulled.acknowledge
        try:
            yield RecordSubscription(self._calls, pulled.next, self._engine.now_us, start, acknowledge)
        finally:
            pulled.end()

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
        await trio.lowlevel.checkpoint()
        start_lsn = self._engine.committed_lsn if after_lsn is None else after_lsn
        pulled = PulledBatches(shard=None, credit_bytes=credit_bytes, unreadable=self._unreadable, start_lsn=start_lsn)
        subscription = await self._engine.subscribe(
            SubscriptionTarget(topic_filter=topic_filter),
            start=Start.lsn(start_lsn + 1),
            until_lsn=until_lsn,
            on_ready=pulled.wake,
            credit_bytes=pulled.credit_bytes,
        )
        pulled.begin(subscription)
        try:
            yield RecordFeed(self._calls, pulled.next, self._engine.now_us, start_lsn)
        finally:
            pulled.end()

    # Cursors and state

    async def get_cursor(self, shard: str, name: str) -> Cursor | None:
        self._calls.require_open()
        await trio.lowlevel.checkpoint()
        return self._engine.get_cursor(shard, name)

    async def list_cursors(self, shard: str) -> list[Cursor]:
        self._calls.require_open()
        await trio.lowlevel.checkpoint()
        return self._engine.list_cursors(shard)

    async def commit_cursor(self, shard: str, name: str, offset: int, *, expected_version: int | None = None) -> Cursor:
        return await self._calls.run(self._engine.commit_cursor(shard, name, offset, expected_version))

    async def delete_cursor(self, shard: str, name: str, *, expected_version: int | None = None) -> None:
        await self._calls.run(self._engine.delete_cursor(shard, name, expected_version))

    async def get_state(self, key: bytes) -> StateValue | None:
        self._calls.require_open()
        await trio.lowlevel.checkpoint()
        return self._engine.get_state(key)

    async def put_state(
        self, key: bytes, value: bytes, *, expected_version: int | None = None, expires_at_us: int = 0
    ) -> StateValue:
        return await self._calls.run(self._engine.put_state(key, value, expected_version, expires_at_us))

    async def delete_state(self, key: bytes, *, expected_version: int | None = None) -> None:
        await self._calls.run(self._engine.delete_state(key, expected_version))

    async def scan_state(self, prefix: bytes = b"", *, after: bytes | None = None) -> AsyncGenerator[StateValue, None]:
        while True:
            self._calls.require_open()
            await trio.lowlevel.checkpoint()
            page, more = await self._calls.run(self._engine.scan_state(prefix, after, _SCAN_PAGE_VALUES))
            for value in page:
                yield value
            if not more:
                return
            after = page[-1].key

    async def commit(self, changes: Changes) -> Committed:
        check_changes(changes)
        appended, values = await self._calls.run(
            self._engine.commit(
                [(shard, self._encode(records)) for shard, records in changes.appends],
                [Put(one.key, one.value, one.expected_version, one.expires_at_us) for one in changes.puts],
                [Delete(one.key, one.expected_version) for one in changes.deletes],
                [CursorCheck(one.shard, one.name, one.max_offset) for one in changes.cursors],
            )
        )
        return Committed(tuple(appended), tuple(values))

    # Producers and life cycle

    async def open_producer(self, name: str) -> ProducerIdentity:
        return await self._calls.run(self._engine.open_producer(name))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._calls.closed:
            return
        self._calls.close()
        with trio.CancelScope(shield=True):
            # What was decided is acknowledged; a failed disk has ended all waits already.
            await self._engine.drain()

    def _shard(self, name: str) -> Shard:
        self._calls.require_open()
        shard = self._engine.shard(name)
        shard.check_usable()
        return shard


class _Appends:
    """Hands batches to the engine; bounds how much of them is under way."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._window = AppendWindow()

    def has_room(self, size_bytes: int) -> bool:
        """Whether both the window and the journal take that much."""
        return self._window.has_room(size_bytes) and self._engine.has_room

    async def wait_for_room(self, size_bytes: int) -> None:
        """Wait until `has_room`, or until the engine has failed and refuses appends."""
        await self._window.wait_for_room(size_bytes)
        await self._engine.wait_for_room()

    def add(
        self, shard: Shard, batch: bytes, ack: AckLevel, expected_offset: int | None, *, is_sound: bool
    ) -> LocalAppend:
        """Begin an append; a refusal is its result.

        Raises:
            OverloadedError: There is no room.
        """
        engine = self._engine
        if not engine.has_room and engine.failure is None:
            raise OverloadedError("the journal is behind with moving records to their files: wait for room")
        pending = self._window.begin(len(batch))
        try:
            engine.append_nowait(shard, batch, pending, ack=ack, expected_offset=expected_offset, is_sound=is_sound)
        except StorageError as error:
            pending.reject(error)
        return pending

    def refuse(self, error: StorageError) -> LocalAppend:
        """An append that did not come as far as the engine."""
        pending = self._window.begin(0)
        pending.reject(error)
        return pending
