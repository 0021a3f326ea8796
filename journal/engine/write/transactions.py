"""Transactions: appends and state changes made atomically, also after a crash.

First everything that could refuse one of the changes is checked. Then all are decided without waiting in between, so
that they are in one commit group; a group is written, and recovered, as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import attrs

from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.entry import ENTRY_HEADER_SIZE
from journal.engine.wal.entry_payloads import StateDeleted, StatePut
from journal.engine.wal.group_commit import MOST_WORDS, Committer
from journal.engine.wal.pending_ack import PendingAck
from journal.engine.write.appender import Appender
from journal.engine.write.commands import Commands, check_state_size
from journal.engine.write.decisions import check_cursor
from shards.errors import BatchError, InvalidRequestError, LimitExceededError, ShardNotFoundError
from shards.format.batch import BatchHeader, verify_body
from shards.model import Appended, StateValue
from shards.segments.chunks import MemoryAccount
from shards.segments.shard import Shard
from shards.views.inverted_index import Words

MOST_CHANGES = 2500
"""Bound on a transaction: it is decided and published in one step of the event loop, some microseconds a change."""

_BESIDES_BYTES = 512
"""Bytes that an append can add to the group besides its batch: for a closed segment and for reserved offsets."""


@attrs.frozen(slots=True)
class Put:
    """Set a key of the state store; see `Commands.put_state`."""

    key: bytes
    value: bytes
    expected_version: int | None = None
    expires_at_us: int = 0


@attrs.frozen(slots=True)
class Delete:
    """Delete a key of the state store; see `Commands.delete_state`."""

    key: bytes
    expected_version: int | None = None


@attrs.frozen(slots=True)
class CursorCheck:
    """Require that this cursor is at ``max_offset`` or before it, or does not exist; see `check_cursor`."""

    shard: str
    name: str
    max_offset: int


@attrs.define(slots=True)
class _Prepared:
    """Checked changes that are ready to be decided.

    Attributes:
        appends: Shards and the batches for them.
        size_bytes: Upper bound of the bytes that all changes take in the journal.
        word_count: Number of words that the batches add to indexes.
    """

    appends: list[tuple[Shard, bytes]] = attrs.Factory(list)
    size_bytes: int = 0
    word_count: int = 0


class Transactions:
    """Commits transactions.

    Args:
        wait_for_room: Returns when the engine accepts more appends.
        begin_chunk: Sets the append time, and which appends are refused, as before any run of appends.
        words: Returns the words of a batch for the shard's index.
    """

    def __init__(
        self,
        *,
        committer: Committer,
        appender: Appender,
        commands: Commands,
        wait_for_room: Callable[[], Awaitable[None]],
        table: ShardTable,
        begin_chunk: Callable[[MemoryAccount | None], None],
        words: Callable[[Shard, memoryview], Words],
    ) -> None:
        self._committer = committer
        self._appender = appender
        self._commands = commands
        self._wait_for_room = wait_for_room
        self._table = table
        self._begin_chunk = begin_chunk
        self._words = words

    async def commit(
        self,
        appends: Sequence[tuple[str, bytes]],
        puts: Sequence[Put],
        deletes: Sequence[Delete],
        cursors: Sequence[CursorCheck] = (),
        account: MemoryAccount | None = None,
    ) -> tuple[list[Appended], list[StateValue]]:
        """Make all changes, and return when they are durable and published. Cancelling ends the wait, not the changes.

        Args:
            appends: Shard name and encoded batch without a producer.
            puts: Keys to set.
            deletes: Keys to delete. No key may be changed twice.
            cursors: Conditions that must hold when the changes are decided.
            account: What the memory counts for that memory-mode appends need.

        Raises:
            InvalidRequestError: There is no change, a key is changed twice, or a batch has a producer.
            VersionConflictError: A key has another version than expected.
            CursorConflictError: A cursor is after its ``max_offset``.
            LimitExceededError: It does not fit into one group of the journal, has too many changes or words for
                indexes, or one of the changes is too large.
            StorageError: One of the changes was refused; nothing was changed.
            StorageFailedError: The disk failed; only after a restart it is known whether the changes are stored.
        """
        prepared = await self._prepare(appends, puts, deletes, cursors)
        await self._wait_for_room()
        self._begin_chunk(account)
        self._check(prepared, puts, deletes, cursors)
        waiters = [PendingAck() for _ in prepared.appends]
        for (shard, batch), waiter in zip(prepared.appends, waiters, strict=True):
            # Memory-mode batches too become visible with the group, not before it.
            self._committer.group.touch(shard)
            self._appender.append_batch(shard, batch, waiter, is_sound=True)
        self._appender.flush_run()
        lsns = [self._commands.change_state_nowait(StatePut(one.key, one.value, one.expires_at_us)) for one in puts]
        for one in deletes:
            self._commands.change_state_nowait(StateDeleted(one.key))
        group = self._committer.group
        self._appender.finish()
        await self._committer.wait(group)
        values = [StateValue(one.key, one.value, lsn, one.expires_at_us) for one, lsn in zip(puts, lsns, strict=True)]
        return [await waiter.wait() for waiter in waiters], values

    async def _prepare(
        self,
        appends: Sequence[tuple[str, bytes]],
        puts: Sequence[Put],
        deletes: Sequence[Delete],
        cursors: Sequence[CursorCheck],
    ) -> _Prepared:
        """Do the checks that do not depend on other clients' changes, in short steps."""
        if not (appends or puts or deletes):
            raise InvalidRequestError("there is nothing to commit: name at least one append, put or delete")
        count = len(appends) + len(puts) + len(deletes) + len(cursors)
        if count > MOST_CHANGES:
            raise LimitExceededError(
                f"a commit of {count} changes ({len(appends)} appends, {len(puts)} puts, {len(deletes)} deletes, "
                f"{len(cursors)} cursors to check) is over the limit of {MOST_CHANGES}; put what need not be atomic "
                f"into several commits, and records for one shard into one append"
            )
        step = TimeSlice()
        prepared = _Prepared()
        changed: list[Put | Delete] = [*puts, *deletes]
        keys = [one.key for one in changed]
        if len(set(keys)) < len(keys):
            twice = next(key for key, number in Counter(keys).items() if number > 1)
            raise InvalidRequestError(f"state key {twice!r} is changed twice in one commit; name it once")
        for one in changed:
            value = one.value if isinstance(one, Put) else b""
            check_state_size(one.key, value)
            # Repeated in `_check`: the version may have changed by then.
            self._commands.check_state_version(one.key, one.expected_version)
            prepared.size_bytes += len(one.key) + len(value) + _BESIDES_BYTES
            if step.is_over:
                await step.rest()
        for name, batch in appends:
            self._prepare_append(prepared, self._table.by_name(name), batch)
            if step.is_over:
                await step.rest()
        for check in cursors:
            # Opens the shard, so that `_check` finds it open.
            self._check_cursor(check)
            if step.is_over:
                await step.rest()
        largest_bytes = self._committer.largest_group_bytes
        if prepared.size_bytes > largest_bytes:
            raise LimitExceededError(
                f"a commit of {prepared.size_bytes} bytes does not fit into one write of the journal, which has room "
                f"for {largest_bytes}; commit less at once or raise storage.journal_file_bytes"
            )
        if prepared.word_count > MOST_WORDS:
            raise LimitExceededError(
                f"a commit with {prepared.word_count} keys and tags of records for indexed shards is over the limit of "
                f"{MOST_WORDS}; put fewer such records into one commit"
            )
        return prepared

    def _prepare_append(self, prepared: _Prepared, shard: Shard, batch: bytes) -> None:
        header: BatchHeader = verify_body(batch)
        if header.is_gap or header.size_bytes != len(batch):
            raise BatchError(f"a batch of {header.size_bytes} bytes is given in {len(batch)} bytes")
        if header.producer_id:
            raise InvalidRequestError(f"the batch for {shard.name!r} has a producer; a commit needs none")
        shard.check_usable()
        if shard.indexed:
            prepared.word_count += len(self._words(shard, memoryview(batch)))
        prepared.appends.append((shard, batch))
        prepared.size_bytes += len(batch) + ENTRY_HEADER_SIZE + _BESIDES_BYTES

    def _check_cursor(self, check: CursorCheck) -> None:
        try:
            found = self._commands.get_cursor(check.shard, check.name)
        except ShardNotFoundError:
            return
        check_cursor(check.shard, check.name, check.max_offset, None if found is None else found.offset)

    def _check(
        self,
        prepared: _Prepared,
        puts: Sequence[Put],
        deletes: Sequence[Delete],
        cursors: Sequence[CursorCheck],
    ) -> None:
        """Check everything that could refuse a change now, and make room in the collecting group for all changes."""
        self._commands.check_may_change(is_freeing=not (prepared.appends or puts))
        changed: list[Put | Delete] = [*puts, *deletes]
        for one in changed:
            self._commands.check_state_version(one.key, one.expected_version)
        for one_check in cursors:
            self._check_cursor(one_check)
        for shard, batch in prepared.appends:
            self._appender.check_acceptable(shard, len(batch))
        self._committer.close_if_long()
        self._committer.make_room_for_words(prepared.word_count)
        self._committer.make_room(prepared.size_bytes)
