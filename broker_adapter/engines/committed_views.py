"""Writing through group commit, and the cursors and state of a key-value store that readers see only once committed.

Shards and records have their own way to the reader (an offset that moves when the flush is done), see `stored_appends`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial

import trio

from broker_adapter.changes import CursorCheck, StateDelete, StatePut
from broker_adapter.engines.group_commit import CommitGroup, GroupCommit
from broker_adapter.engines.shard_table import ShardTable
from broker_adapter.engines.stored_shard import StoredShard
from shards.errors import InvalidRequestError, OffsetOutOfRangeError
from shards.model import Cursor, StateValue
from shards.seams.clock import Clock
from shards.seams.store import Mutations, OrderedStore
from shards.views.compare_and_set import check, check_cursor
from shards.views.cursors import Cursors
from shards.views.state_store import StateStore

_SCAN_PAGE_VALUES = 200
_EXPIRY_STEP_KEYS = 500


class CommittedWrites:
    """Writes at once, acknowledges after the flush, and knows which keys are in between."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._unfinished: dict[bytes, CommitGroup] = {}

    async def write(self, mutations: Mutations, *keys: bytes, on_durable: Callable[[], None] | None = None) -> None:
        """Return when the mutations are durable; `settled` waits for the same if it is asked for one of ``keys``."""
        self._commit.write(mutations)
        group = self._commit.request(on_durable)
        for key in keys:
            self._unfinished[key] = group
            group.on_durable(partial(self._forget, key, group))
        await trio.lowlevel.checkpoint()
        await group.wait()

    def write_nowait(self, mutations: Mutations) -> None:
        """Write what becomes durable with whatever is flushed next."""
        self._commit.write(mutations)

    async def settled(self, key: bytes = b"") -> None:
        """Return when what the store holds under a key (without one: all that it holds now) is durable."""
        await trio.lowlevel.checkpoint()
        if not key:
            await self._commit.settle()
        while (group := self._unfinished.get(key)) is not None:
            await group.wait()

    def _forget(self, key: bytes, group: CommitGroup) -> None:
        if self._unfinished.get(key) is group:
            del self._unfinished[key]


class CommittedCursors:
    """The cursors of one store."""

    def __init__(self, store: OrderedStore, writes: CommittedWrites, table: ShardTable) -> None:
        self._writes = writes
        self._table = table
        self._view = Cursors(store)

    async def get(self, shard: StoredShard, name: str) -> Cursor | None:
        await self._writes.settled(_cursor_key(shard, name))
        return self._view.get(shard.shard_id, name)

    async def list(self, shard: StoredShard) -> list[Cursor]:
        await self._writes.settled()
        return self._view.list(shard.shard_id)

    async def commit(self, shard: StoredShard, name: str, offset: int, expected_version: int | None) -> Cursor:
        self._check(shard, name, expected_version)
        if not 0 <= offset <= shard.next_offset:
            raise OffsetOutOfRangeError(shard.name, offset, shard.start_offset, shard.visible_offset)
        mutations = Mutations()
        version = self._table.next_lsn(mutations)
        self._view.fold_commit(mutations, shard.shard_id, name, offset, version)
        await self._writes.write(mutations, _cursor_key(shard, name))
        return Cursor(name, offset, version)

    async def delete(self, shard: StoredShard, name: str, expected_version: int | None) -> None:
        self._check(shard, name, expected_version)
        mutations = Mutations()
        self._view.fold_delete(mutations, shard.shard_id, name)
        await self._writes.write(mutations, _cursor_key(shard, name))

    def delete_all(self, mutations: Mutations, shard: StoredShard) -> None:
        """Drop the cursors of a shard that the same mutations delete."""
        self._view.delete_all(mutations, shard.shard_id)

    def offset_nowait(self, shard: StoredShard, name: str) -> int | None:
        """A cursor's offset, committed or not."""
        cursor = self._view.get(shard.shard_id, name)
        return None if cursor is None else cursor.offset

    def set_nowait(self, shard: StoredShard, name: str, offset: int) -> None:
        """Set a cursor without waiting; it becomes durable with whatever is flushed next."""
        mutations = Mutations()
        self._view.fold_commit(mutations, shard.shard_id, name, offset, self._table.next_lsn(mutations))
        self._writes.write_nowait(mutations)

    def check_all(self, cursors: Iterable[CursorCheck]) -> None:
        """Raise `CursorConflictError` if one of the cursors lies beyond where it may."""
        for one in cursors:
            if one.shard in self._table:
                found_offset = self.offset_nowait(self._table[one.shard], one.name)
                check_cursor(one.shard, one.name, one.max_offset, found_offset)

    def _check(self, shard: StoredShard, name: str, expected_version: int | None) -> None:
        found = self._view.get(shard.shard_id, name)
        check(f"cursor {name!r} of shard {shard.name!r}", expected_version, found.version if found else 0)


class CommittedState:
    """The state of one store."""

    def __init__(self, store: OrderedStore, writes: CommittedWrites, table: ShardTable, clock: Clock) -> None:
        self._writes = writes
        self._table = table
        self._clock = clock
        self._view = StateStore(store)

    async def get(self, key: bytes) -> StateValue | None:
        await self._writes.settled(_state_key(key))
        return self._view.get(key, self._clock.now_us())

    async def put(self, key: bytes, value: bytes, expected_version: int | None, expires_at_us: int) -> StateValue:
        if not key:
            raise InvalidRequestError("a state key must have at least one byte")
        self._check(key, expected_version)
        mutations = Mutations()
        version = self._table.next_lsn(mutations)
        self._view.fold_put(mutations, key, value, version, expires_at_us)
        await self._writes.write(mutations, _state_key(key))
        return StateValue(key, value, version, expires_at_us)

    async def delete(self, key: bytes, expected_version: int | None) -> None:
        self._check(key, expected_version)
        mutations = Mutations()
        self._view.fold_delete(mutations, key)
        await self._writes.write(mutations, _state_key(key))

    def change(
        self, mutations: Mutations, puts: Sequence[StatePut], deletes: Sequence[StateDelete]
    ) -> tuple[StateValue, ...]:
        """Put changes that `check_changes` has passed into mutations; the values as they will be."""
        values: list[StateValue] = []
        for put in puts:
            version = self._table.next_lsn(mutations)
            self._view.fold_put(mutations, put.key, put.value, version, put.expires_at_us)
            values.append(StateValue(put.key, put.value, version, put.expires_at_us))
        for delete in deletes:
            self._view.fold_delete(mutations, delete.key)
        return tuple(values)

    def check_changes(self, changes: Sequence[StatePut | StateDelete]) -> list[bytes]:
        """Raise what stands against one of the changes; the keys to `write` them under."""
        for one in changes:
            if not one.key:
                raise InvalidRequestError("a state key must have at least one byte")
            self._check(one.key, one.expected_version)
        return [_state_key(one.key) for one in changes]

    async def scan(self, prefix: bytes, after: bytes | None = None) -> AsyncGenerator[StateValue, None]:
        while True:
            await self._writes.settled()
            page = self._view.scan(prefix, self._clock.now_us(), after=after, limit=_SCAN_PAGE_VALUES)
            for value in page:
                yield value
            if len(page) < _SCAN_PAGE_VALUES:
                return
            after = page[-1].key

    async def drop_expired(self) -> None:
        """Remove what has expired from the store; nobody has seen it since it did."""
        while keys := self._view.expired(self._clock.now_us(), _EXPIRY_STEP_KEYS):
            for key in keys:
                mutations = Mutations()
                self._view.fold_delete(mutations, key)
                self._writes.write_nowait(mutations)
            await trio.lowlevel.checkpoint()

    def _check(self, key: bytes, expected_version: int | None) -> None:
        found = self._view.get(key, self._clock.now_us())
        check(f"state key {key!r}", expected_version, found.version if found else 0)


def _cursor_key(shard: StoredShard, name: str) -> bytes:
    return b"c%d/" % shard.shard_id + name.encode()


def _state_key(key: bytes) -> bytes:
    return b"s" + key
