"""The interface of the engine: all that a server, the embedded adapter, backups and telemetry call.

`journal.engine.open_engine` creates an `Engine`. Its parts are in `journal.engine.parts`; code outside of this package
does not use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager

import trio

from journal.engine.parts import EngineParts
from journal.engine.readable import Readable
from journal.engine.segments.snapshots import Snapshot
from journal.engine.startup import RecoveryReport
from journal.engine.state.shard_discovery import NameScan
from journal.engine.statistics import EngineStatistics
from journal.engine.subscribe.subscription import Subscription, SubscriptionTarget
from journal.engine.wal.pending_ack import AppendResult, PendingAck
from journal.engine.write.appender import Appender
from journal.engine.write.commands import LARGEST_SCAN_BYTES
from journal.engine.write.no_appends import NO_APPENDS, NoAppends
from journal.engine.write.transactions import CursorCheck, Delete, Put
from journal.settings.server import ServerConfig
from shards.errors import NotOwnerError, StorageFailedError
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
from shards.segments.chunks import MemoryAccount
from shards.segments.read_slices import Place, ReadSlice
from shards.segments.shard import Shard
from shards.views import shard_records
from shards.views.inverted_index import By


class Engine:
    """An open engine, or the one of a follower.

    A follower folds the log that the owner of its store writes. Until it owns the store itself, its engine only reads;
    everything else raises `NotOwnerError`. What it reads is the log up to the end of a commit group.

    Every method that changes something returns when the change is durable and published, unless its docstring says
    otherwise. Cancelling it ends the wait, not the change. While the disk is full or has failed, changes are refused
    with the reason.

    Args:
        readable: What reads need.
        parts: The parts of the engine; None for a follower.
        owner: Returns ``HOST:PORT`` of the server that a follower follows; empty if it is not known.
    """

    def __init__(
        self, readable: Readable, parts: EngineParts | None = None, owner: Callable[[], str] = lambda: ""
    ) -> None:
        self._readable = readable
        self._parts = parts
        self._owner = owner
        self._ended: NotOwnerError | None = None
        self._follows_no_more = trio.Event()

    # Following

    @property
    def parts(self) -> EngineParts:
        """The parts of the engine. Outside of this class, only their tests use them.

        Raises:
            NotOwnerError: This server follows another one.
        """
        if self._parts is None:
            raise NotOwnerError(self._owner())
        return self._parts

    @property
    def is_following(self) -> bool:
        """Whether another server owns the store, so that this one only reads."""
        return self._parts is None

    @property
    def owner(self) -> str:
        """``HOST:PORT`` of the server that a follower follows; empty if it is not known."""
        return self._owner()

    def take_over(self, parts: EngineParts) -> None:
        """This server owns the store now. Shards that are in use stay the same objects."""
        self._parts, self._readable = parts, parts.readable
        self._follows_no_more.set()

    def end_following(self) -> None:
        """What was read is about to be closed, or not current any more: `wait_failed` returns."""
        self._ended = NotOwnerError(self._owner())
        self._follows_no_more.set()

    # The node

    @property
    def node_id(self) -> str:
        """The id of the node that the data directory belongs to."""
        return self._readable.node_id

    @property
    def config(self) -> ServerConfig:
        """The settings that the engine was opened with."""
        return self._readable.config if self._parts is None else self._parts.config

    @property
    def recovery(self) -> RecoveryReport:
        """What the start read from the journal."""
        return self.parts.recovery

    @property
    def failure(self) -> StorageFailedError | None:
        """Why the engine stopped acknowledging, or a follower stopped to be read; None while it works."""
        return self._ended if self._parts is None else self._parts.committer.failure

    async def wait_failed(self) -> StorageFailedError:
        """Return when the engine has stopped acknowledging, or a follower stopped to be read, with the reason."""
        if self._parts is None:
            await self._follows_no_more.wait()
        if self._ended is not None:
            return self._ended
        committer = self.parts.committer
        await committer.has_failed.wait()
        assert committer.failure is not None
        return committer.failure

    @property
    def disk_full(self) -> Exception | None:
        """Why file-mode appends are refused now, for lack of disk space; None while they are accepted."""
        return self.parts.disk_space.full

    def now_us(self) -> int:
        """The node's time of day in microseconds since 1970; see `NodeTime.now_us`."""
        return self._readable.time.now_us()

    def announce(self, tcp: str) -> None:
        """Write the server's address into the data directory, until the engine is closed. Blocks on the disk.

        Args:
            tcp: ``HOST:PORT`` of the native protocol as this machine reaches it; empty without such a listener.
        """
        self.parts.directory.announce(tcp, os.getpid())

    def restores(self) -> list[HistoryGap]:
        """The newest restores from backups as gaps in the lsns, oldest first."""
        return self._readable.restores.gaps()

    def described_restores(self) -> list[dict[str, int]]:
        """The same as values of the protocol: names to numbers."""
        return self._readable.restores.told()

    def statistics(self) -> EngineStatistics:
        """Counts and measurements of the engine, taken without reading single shards."""
        return EngineStatistics.of(self.parts)

    def take_snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Keep all files as they are at one moment for the length of an ``async with`` block, for a backup."""
        return self.parts.snapshots.take()

    async def checkpoint(self) -> None:
        """Make a checkpoint: after it, recovery reads nothing that refers to segments dropped before the call."""
        await self.parts.checkpointer.after_checkpoint(trio.lowlevel.checkpoint)

    @property
    def converts(self) -> bool:
        """Whether closed segments are converted to Parquet."""
        return self.parts.conversion.enabled

    async def drain(self) -> None:
        """Return when all earlier decisions are durable, published and acknowledged, or the engine has failed."""
        await self.parts.committer.drain()

    # Appends

    @property
    def has_room(self) -> bool:
        """Whether more file-mode appends may be accepted without exceeding the memory and journal budgets."""
        return self._parts is None or self._parts.checkpointer.has_room()

    async def wait_for_room(self) -> None:
        """Return when `has_room`, or when the engine has failed; an append after it then reports the failure."""
        if self._parts is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._parts.checkpointer.wait_for_room()

    def free_memory(self) -> None:
        """Memory is needed in which appends were received that are not durable yet; see `Committer.free_memory`."""
        if not self.is_following:
            self.parts.committer.free_memory()

    def begin_stop(self) -> None:
        """The engine is about to be closed: no acknowledgement waits for the time between two slots any more."""
        if not self.is_following:
            self.parts.committer.defer_nothing()

    def begin_chunk(self, account: MemoryAccount | None = None) -> Appender | NoAppends:
        """Begin a run of appends that were received together; `Appender.finish` ends it before the next ``await``.

        Sets the append time of the run, and which appends are refused.

        Args:
            account: What the memory counts for that memory-mode appends of the run need; None for nothing.
        """
        if self._parts is None:
            return NO_APPENDS
        self._parts.begin_chunk(account)
        return self._parts.appender

    def hold_until_committed(self, callback: Callable[[], None], give_back: Callable[[], None]) -> None:
        """Call back when all appends so far are durable and published, or the engine has failed.

        Args:
            callback: Called then.
            give_back: Called then or before, when the memory is not needed any more in which they were received.
        """
        self.parts.appender.flush_run()
        group = self.parts.committer.group
        group.held.append(callback)
        group.lent.append(give_back)

    async def append(
        self, shard: Shard, batch: bytes, *, ack: AckLevel = AckLevel.DEFAULT, expected_offset: int | None = None
    ) -> Appended:
        """Append one encoded batch from inside the process.

        Returns when the requested level is reached: with DEFAULT in file mode, after the fsync.

        Raises:
            StorageError: The batch was refused; no part of it is stored.
            StorageFailedError: The disk failed; only after a restart it is known whether the batch is stored.
        """
        await self.wait_for_room()
        waiter = PendingAck()
        self.append_nowait(shard, batch, waiter, ack=ack, expected_offset=expected_offset)
        return await waiter.wait()

    def append_nowait(
        self,
        shard: Shard,
        batch: bytes,
        result: AppendResult,
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
        is_sound: bool = False,
        account: MemoryAccount | None = None,
    ) -> None:
        """Append one encoded batch from inside the process; ``result`` gets its outcome, possibly at once.

        The caller limits the number of appends in flight and checks `has_room` first.

        Args:
            is_sound: The batch was encoded in this process just now: it is not checked for damage.
            account: See `begin_chunk`.

        Raises:
            StorageError: The batch was refused; no part of it is stored.
        """
        self.parts.begin_chunk(account)
        appender = self.parts.appender
        try:
            appender.append_batch(shard, batch, result, ack=ack, expected_offset=expected_offset, is_sound=is_sound)
        finally:
            appender.finish()

    async def commit(
        self,
        appends: Sequence[tuple[str, bytes]],
        puts: Sequence[Put],
        deletes: Sequence[Delete],
        cursors: Sequence[CursorCheck] = (),
        account: MemoryAccount | None = None,
    ) -> tuple[list[Appended], list[StateValue]]:
        """Make several changes atomically; see `Transactions.commit`."""
        return await self.parts.transactions.commit(appends, puts, deletes, cursors, account)

    # Shards

    def shard(self, name: str) -> Shard:
        """The shard with this name; it is opened if it is closed.

        Raises:
            ShardNotFoundError: It does not exist.
        """
        return self._readable.table.by_name(name)

    def shard_id(self, name: str) -> int | None:
        """The id of a shard, without opening it; None if it does not exist."""
        return self._readable.table.catalogue.id_of(name)

    def opened_shard(self, shard_id: int) -> Shard | None:
        """The shard with this id if it is open now."""
        return self._readable.table.opened(shard_id)

    def open_shards(self) -> list[Shard]:
        """The shards that are open now."""
        return self._readable.table.open_shards()

    def peek(self, shard_id: int) -> Shard | None:
        """A view of the shard with this id, for reading before the next ``await``; None if it does not exist."""
        return self._readable.table.peek(shard_id)

    def scan_names(self, topic_filter: str, after: str = "") -> NameScan:
        """The names of the shards that match a filter and sort after ``after``, in steps of bounded length.

        Raises:
            InvalidNameError: The filter is not valid.
        """
        return NameScan(self._readable.table.catalogue, topic_filter, after)

    def shard_ids(self) -> list[int]:
        """The ids of all shards."""
        return [shard_id for shard_id, _ in self._readable.table.catalogue.records()]

    def match_names(self, topic_filter: str, limit: int) -> list[str]:
        """Up to ``limit`` names of shards that match a filter, in one call that does not wait."""
        return list(self._readable.table.catalogue.matching(topic_filter, limit=limit))

    def describe_shard(self, name: str, *, with_segments: bool = True) -> ShardInfo:
        """The present state of a shard, without opening it.

        Raises:
            ShardNotFoundError: It does not exist.
        """
        return self._readable.table.peek_by_name(name).info(with_segments=with_segments)

    def stored_outlines(self) -> Iterator[shard_records.Outline | None]:
        """Records of each shard and segment in the views, one for each step; None for a step that found none."""
        return shard_records.outlines(self.parts.views.store)

    def stored_ranges(self, shard_id: int) -> list[tuple[int, int]]:
        """The ranges (first offset, next offset) of a shard that have records, according to the views."""
        return shard_records.held_ranges(self.parts.views.store, shard_id)

    async def create_shard(self, name: str, config: ShardConfig, *, exist_ok: bool = False) -> ShardInfo:
        """Create a shard; with ``exist_ok`` an existing one is returned unchanged.

        Raises:
            ShardExistsError: It exists, and ``exist_ok`` was not given.
            LimitExceededError: The node has as many shards as it may have (shards.max_shards).
        """
        return await self.parts.commands.create_shard(name, config, exist_ok=exist_ok)

    async def delete_shard(self, name: str) -> None:
        """Delete a shard with its records, cursors and files."""
        await self.parts.commands.delete_shard(name)

    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        """Change the retention or segment size of a shard; None leaves a setting unchanged."""
        return await self.parts.commands.configure_shard(name, retention=retention, segment_bytes=segment_bytes)

    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        """Switch a shard to memory or file mode while it is in use."""
        return await self.parts.commands.set_mode(name, mode)

    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        """Drop all records below an offset."""
        return await self.parts.commands.trim(name, before_offset)

    async def roll(self, name: str) -> ShardInfo:
        """Close the active segment of a shard; the next append opens another."""
        return await self.parts.commands.roll(name)

    async def convert(self, name: str) -> ShardInfo:
        """Roll a shard, and return when all its closed log segments are Parquet files.

        Memory segments are not converted, and not waited for.

        Raises:
            InvalidRequestError: Conversion is disabled.
            StorageError: A segment could not be converted; it stays a log file.
        """
        conversion = self.parts.conversion
        conversion.require_enabled()
        info = await self.parts.commands.roll(name)
        shard = self.parts.table.by_name(name)
        await conversion.wait_until_sealed(shard, info.next_offset)
        return shard.info(with_segments=True)

    # Reading

    def check_range(self, shard: Shard, offset: int) -> None:
        """Refuse an offset that is outside the shard.

        Raises:
            OffsetOutOfRangeError: The offset is before the first one or after the next one.
        """
        self._readable.reader.check_range(shard, offset)

    def read_nowait(self, shard: Shard, offset: int, max_bytes: int, place: Place | None = None) -> ReadSlice | None:
        """Read what is in memory; None if a file has to be read. Empty at the end of the shard."""
        return self._readable.reader.read_nowait(shard, offset, max_bytes, place)

    async def read(self, shard: Shard, offset: int, max_bytes: int, place: Place | None = None) -> ReadSlice:
        """Whole batches, beginning with the one that holds ``offset``: up to about ``max_bytes``, but at least one."""
        return await self._readable.reader.read(shard, offset, max_bytes, place)

    async def wait_beyond(self, shard: Shard, offset: int, max_wait_s: float) -> None:
        """Return when the shard has a record at this offset, or after ``max_wait_s``."""
        await self._readable.reader.wait_beyond(shard, offset, max_wait_s)

    async def find_offset(self, shard: Shard, start: Start) -> int:
        """Resolve a start position to the first offset to read."""
        return await self._readable.reader.find_offset(shard, start)

    async def read_indexed(
        self, shard: Shard, by: By, word: bytes, from_offset: int, max_bytes: int, *, latest: bool
    ) -> ReadSlice:
        """Whole batches that hold records with a key or tag; the caller has to select these records in them."""
        return await self._readable.reader.read_indexed(shard, by, word, from_offset, max_bytes, latest=latest)

    # Subscriptions

    @property
    def committed_lsn(self) -> int:
        """Every entry up to this lsn is durable and published, and so is every memory-mode batch.

        That of a follower is the newest lsn of the log that it has read.
        """
        return self._readable.lsns.committed_lsn()

    async def wait_to_have(self, lsn: int) -> None:
        """Return when a follower has read the log up to this lsn; at once if this server owns the store."""
        await self._readable.lsns.wait_to_have(lsn)

    @property
    def subscription_count(self) -> int:
        """Number of open subscriptions."""
        return self._readable.subscriptions.count

    async def subscribe(
        self,
        target: SubscriptionTarget,
        *,
        start: Start,
        until_lsn: int | None = None,
        common_lsn: int | None = None,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
        may_deliver: Callable[[str], bool] | None = None,
    ) -> Subscription:
        """Begin a subscription to a shard or to all shards that match a filter; see `Subscriptions.subscribe`.

        Raises:
            NotOwnerError: This server follows another one, and the target has a group: groups store their positions.
        """
        readable = self._readable if target.group is None else self.parts.readable
        return await readable.subscriptions.subscribe(
            target,
            start=start,
            until_lsn=until_lsn,
            common_lsn=common_lsn,
            on_ready=on_ready,
            credit_bytes=credit_bytes,
            may_deliver=may_deliver,
        )

    # Cursors

    async def commit_cursor(self, shard: str, name: str, offset: int, expected_version: int | None) -> Cursor:
        """Set a cursor if its version is the expected one (None: any version; 0: the cursor must not exist).

        Raises:
            VersionConflictError: The cursor has another version.
        """
        return await self.parts.commands.commit_cursor(shard, name, offset, expected_version)

    async def delete_cursor(self, shard: str, name: str, expected_version: int | None) -> None:
        """Delete a cursor, under the same condition."""
        await self.parts.commands.delete_cursor(shard, name, expected_version)

    def get_cursor(self, shard: str, name: str) -> Cursor | None:
        """The committed value of a cursor, None if it does not exist."""
        return self.parts.commands.get_cursor(shard, name)

    def list_cursors(self, shard: str, after: str = "", limit: int | None = None) -> list[Cursor]:
        """Up to ``limit`` cursors of a shard, sorted by name, after ``after``. The shard is not opened.

        Raises:
            ShardNotFoundError: The shard does not exist.
            ShardDamagedError: The shard is stopped because of damage.
        """
        return self.parts.commands.list_cursors(shard, after, limit)

    def cursor_of(self, shard_id: int, name: str) -> Cursor | None:
        """A cursor by the id of its shard, even if the shard is damaged."""
        return self.parts.views.cursors.get(shard_id, name)

    def cursors_of(self, shard_id: int, after: str, limit: int) -> list[Cursor]:
        """Up to ``limit`` cursors after ``after``, by the id of their shard, even if the shard is damaged."""
        return self.parts.views.cursors.list(shard_id, after, limit)

    def all_cursors(self) -> Iterator[tuple[int, str, int] | None]:
        """(shard id, name, offset) of all cursors, one for each step; None for a step that found none."""
        return self.parts.views.cursors.all()

    # State

    def get_state(self, key: bytes) -> StateValue | None:
        """A committed value that has not expired; None if there is none."""
        return self.parts.commands.get_state(key)

    async def put_state(self, key: bytes, value: bytes, expected_version: int | None, expires_at_us: int) -> StateValue:
        """Set a key of the state store if its version is the expected one, as for cursors.

        Raises:
            VersionConflictError: The key has another version.
        """
        return await self.parts.commands.put_state(key, value, expected_version, expires_at_us)

    async def delete_state(self, key: bytes, expected_version: int | None) -> None:
        """Delete a key, under the same condition. A missing key is an error only if a version was expected."""
        await self.parts.commands.delete_state(key, expected_version)

    async def scan_state(
        self, prefix: bytes, after: bytes | None, limit: int, size_bytes: int = LARGEST_SCAN_BYTES
    ) -> tuple[list[StateValue], bool]:
        """A page of committed values whose keys have a prefix, by key, after ``after``; and whether more follow."""
        return await self.parts.commands.scan_state(prefix, after, limit, size_bytes)

    # Producers

    async def open_producer(self, name: str) -> ProducerIdentity:
        """Register a producer or take it over: its epoch is raised, and clients with an older epoch are fenced."""
        return await self.parts.commands.open_producer(name)

    def new_producers(self, name: str, beginning: str) -> tuple[int, int] | None:
        """Count the producers whose names begin so, and all producers; None if a producer with this name exists."""
        return self.parts.commands.new_producers(name, beginning)

    def producer_opened(self, identity: ProducerIdentity, connection: int) -> None:
        """Note that a connection is about to use a producer that it has opened."""
        self.parts.producer_use.opened(identity.producer_id, identity.epoch, connection)

    def connection_closed(self, connection: int) -> None:
        """Note that a connection uses no producer any more."""
        if self._parts is not None:
            self._parts.producer_use.disconnected(connection)
