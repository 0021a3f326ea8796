"""Changes that are not appends: creating, switching and trimming shards; setting cursors and state; opening producers.

Each is decided once, against the views and all pending decisions, becomes an entry, and is answered when that entry is
durable. Decisions are committed in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Callable

from journal.engine.state.node_time import NodeTime
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.entry_payloads import (
    CursorCommitted,
    CursorDeleted,
    FilesConverted,
    ProducerDeleted,
    ProducerUsed,
    Rolled,
    ShardConfigured,
    ShardCreated,
    ShardDeleted,
    StateDeleted,
    StatePut,
    Trimmed,
)
from journal.engine.wal.group import Group
from journal.engine.wal.group_commit import Committer
from journal.engine.write.decisions import Decisions
from shards.errors import (
    InvalidRequestError,
    LimitExceededError,
    OffsetOutOfRangeError,
    ShardExistsError,
    afresh,
)
from shards.model import Cursor, Mode, ProducerIdentity, Retention, ShardConfig, ShardInfo, StateValue
from shards.segments.shard import BEING_DELETED, Shard
from shards.topics.names import validate_name, validate_shard_name

LARGEST_STATE_BYTES = 1 << 20
LARGEST_KEY_BYTES = 4096
LARGEST_SCAN_BYTES = 8 << 20
"""A page of a scan ends at about this many bytes unless the caller requests fewer."""

_EXPIRED_AT_ONCE = 500


class Commands(Decisions):
    """All changes that a client can make apart from appends.

    Methods that change something return when the change is durable and published, and raise StorageFailedError if the
    engine fails before. Cancelling one ends the wait, not the change: it was decided already.
    """

    def __init__(
        self,
        committer: Committer,
        views: Views,
        table: ShardTable,
        *,
        time: NodeTime,
        first_epoch: int,
        max_shards: int,
        default_config: Callable[[ShardConfig], ShardConfig],
    ) -> None:
        super().__init__(committer)
        self._views = views
        self._table = table
        self._created_us = time.append_time_us
        self._expiry_us = time.expiry_us
        self._first_epoch = first_epoch
        self._max_shards = max_shards
        self._default_config = default_config
        self._pending_names: dict[str, Group] = {}
        self._pending_epochs: dict[str, ProducerIdentity] = {}

    # Shards

    async def create_shard(self, name: str, config: ShardConfig, *, exist_ok: bool = False) -> ShardInfo:
        """Create a shard; with ``exist_ok`` an existing one is returned unchanged.

        Raises:
            ShardExistsError: It exists, and ``exist_ok`` was not given.
            InvalidNameError: The name breaks the rules of topic names.
            LimitExceededError: The node has as many shards as it may have (shards.max_shards).
        """
        validate_shard_name(name)
        while (creating := self._pending_names.get(name)) is not None:
            # Another caller is creating it: the answer depends on that, once it is durable.
            await self._committer.wait(creating)
        if self._table.catalogue.id_of(name) is not None:
            shard = self._table.by_name(name)
            if not exist_ok:
                raise ShardExistsError(
                    f"shard {name!r} exists already (in {shard.config.mode} mode); use it or delete it first"
                )
            return shard.info(with_segments=False)
        if len(self._table.catalogue) + len(self._pending_names) >= self._max_shards:
            raise LimitExceededError(
                f"cannot create {name!r}: the node has {self._max_shards} shards, all that shards.max_shards allows"
            )
        created = ShardCreated(name, self._default_config(config), self._created_us())

        def pending(lsn: int) -> Callable[[], None]:
            self._pending_names[name] = self._committer.group
            return lambda: self._forget_name(name)

        shard_id = await self._commit(created, 0, is_creation=True, pending=pending)
        found = self._table.by_id(shard_id)
        if found is None:
            return self._table.by_name(name).info(with_segments=False)
        return found.info(with_segments=False)

    def _forget_name(self, name: str) -> None:
        del self._pending_names[name]

    async def delete_shard(self, name: str) -> None:
        """Delete a shard with its records, cursors and files."""
        shard = self._table.by_name(name)
        if shard.deleted:
            # Another caller is deleting it: it is deleted when that is durable.
            await self._committer.wait_for_all()
            return

        def pending(lsn: int) -> Callable[[], None]:
            shard.deleted = True
            shard.deleted_lsn = lsn
            shard.damage = shard.damage or BEING_DELETED
            return lambda: None

        await self._commit(ShardDeleted(name), shard.shard_id, pending=pending)

    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        """Change the retention or segment size of a shard; None leaves a setting unchanged."""
        shard = self._usable(name)
        kept = shard.config.retention if retention is None else retention
        size = shard.config.segment_bytes if segment_bytes is None else segment_bytes
        await self._commit(ShardConfigured(kept, size), shard.shard_id)
        return shard.info(with_segments=False)

    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        """Switch a shard to memory or file mode while it is in use.

        Closes the active segment and opens the next one in the other mode: no record moves, offsets continue.
        """
        shard = self._usable(name)
        if shard.in_memory_mode != (mode is Mode.MEMORY):
            self._roll(shard, mode)
        # Also if another caller has just switched it: the answer promises durability.
        await self._committer.wait_for_all()
        return shard.info(with_segments=False)

    async def roll(self, name: str) -> ShardInfo:
        """Close the active segment; the next record begins a new one. An empty segment is not closed."""
        shard = self._usable(name)
        active = shard.active()
        if active is not None and active.next_offset > active.base_offset:
            self._roll(shard, Mode.MEMORY if shard.in_memory_mode else Mode.FILE)
            await self._committer.wait(self._committer.group)
        return shard.info(with_segments=True)

    async def record_files_converted(self, decision: FilesConverted) -> None:
        """Record that shared files, which are durably in their places, replace closed segments of many shards.

        REQUIRES: the decision has at most `largest_decision_bytes`. Its parts are put into the shards later.

        Raises:
            StorageFailedError: Only after a restart it is known whether the files are valid.
        """
        await self._commit(decision, 0)

    @property
    def largest_decision_bytes(self) -> int:
        """Size of the largest decision that fits into a journal file."""
        return self._committer.largest_group_bytes

    def roll_nowait(self, shard: Shard) -> None:
        """Close the active segment and open a new one of the same mode, with an entry in the collecting group."""
        self._roll(shard, Mode.MEMORY if shard.in_memory_mode else Mode.FILE)

    def _roll(self, shard: Shard, mode: Mode) -> None:
        if self._committer.failure is not None:
            raise afresh(self._committer.failure)
        now = self._created_us()
        self._committer.decide(Rolled(shard.next_offset, mode, now), shard.shard_id)
        self._table.open_segment(shard, mode, shard.next_offset, now)
        self._committer.group.touch(shard)

    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        """Drop all records below an offset.

        Raises:
            OffsetOutOfRangeError: The offset is after the shard's next offset.
        """
        shard = self._usable(name)
        if before_offset > shard.published_offset:
            raise OffsetOutOfRangeError(name, before_offset, shard.start_offset, shard.published_offset)
        if before_offset > shard.start_offset:
            await self._commit(Trimmed(before_offset), shard.shard_id)
        return shard.info(with_segments=False)

    def trim_nowait(self, shard: Shard, before_offset: int) -> None:
        """The same for retention, with an entry in the collecting group."""
        self._committer.decide(Trimmed(before_offset), shard.shard_id)

    def _usable(self, name: str) -> Shard:
        shard = self._table.by_name(name)
        shard.check_usable()
        return shard

    # Cursors

    async def commit_cursor(self, shard_name: str, name: str, offset: int, expected_version: int | None) -> Cursor:
        """Set a cursor if its version is the expected one (None: any version; 0: the cursor must not exist).

        Raises:
            VersionConflictError: The cursor has another version.
        """
        validate_name("cursor name", name)
        shard = self._usable(shard_name)
        if offset < 0:
            raise InvalidRequestError(
                f"cursor {name!r} of shard {shard_name!r} cannot be set to offset {offset}; offsets begin at 0"
            )
        if offset > shard.published_offset:
            raise OffsetOutOfRangeError(shard_name, offset, shard.start_offset, shard.published_offset)
        lsn = await self._compare_and_set(
            ("cursor", shard.shard_id, name),
            f"cursor {name!r} of shard {shard_name!r}",
            expected_version,
            self._cursor_version(shard, name),
            CursorCommitted(name, offset),
            shard.shard_id,
        )
        return Cursor(name, offset, lsn)

    def commit_cursor_nowait(self, shard: Shard, name: str, offset: int) -> Group:
        """Set a cursor with any version in the collecting group, and return the group, for which the caller can wait.

        Raises:
            StorageError: It was refused; nothing was decided.
        """
        shard.check_usable()
        self.check_may_change()
        decision = CursorCommitted(name, offset)
        note = self._version_note(("cursor", shard.shard_id, name), decision)
        self._decide(decision, shard.shard_id, pending=note)
        return self._committer.group

    async def delete_cursor(self, shard_name: str, name: str, expected_version: int | None) -> None:
        """Delete a cursor, under the same condition."""
        shard = self._usable(shard_name)
        await self._compare_and_set(
            ("cursor", shard.shard_id, name),
            f"cursor {name!r} of shard {shard_name!r}",
            expected_version,
            self._cursor_version(shard, name),
            CursorDeleted(name),
            shard.shard_id,
        )

    def _cursor_version(self, shard: Shard, name: str) -> int:
        cursor = self._views.cursors.get(shard.shard_id, name)
        return cursor.version if cursor is not None else 0

    def get_cursor(self, shard_name: str, name: str) -> Cursor | None:
        """The committed value of a cursor, None if it does not exist."""
        return self._views.cursors.get(self._usable(shard_name).shard_id, name)

    def list_cursors(self, shard_name: str, after: str = "", limit: int | None = None) -> list[Cursor]:
        """Up to ``limit`` cursors of a shard, sorted by name, after ``after``. The shard is not opened."""
        shard = self._table.peek_by_name(shard_name)
        shard.check_usable()
        return self._views.cursors.list(shard.shard_id, after, limit)

    # State

    async def put_state(self, key: bytes, value: bytes, expected_version: int | None, expires_at_us: int) -> StateValue:
        """Set a key of the state store if its version is the expected one.

        Raises:
            VersionConflictError: The key has another version.
            LimitExceededError: Key or value is too large.
        """
        check_state_size(key, value)
        decision = StatePut(key, value, expires_at_us)
        lsn = await self._compare_and_set(
            ("state", key), f"state key {key!r}", expected_version, self._state_version(key), decision, 0
        )
        return StateValue(key, value, lsn, expires_at_us)

    async def delete_state(self, key: bytes, expected_version: int | None) -> None:
        """Delete a key, under the same condition. A missing key is an error only if a version was expected."""
        await self._compare_and_set(
            ("state", key), f"state key {key!r}", expected_version, self._state_version(key), StateDeleted(key), 0
        )

    def check_state_version(self, key: bytes, expected_version: int | None) -> None:
        """Raise the error that `put_state` would raise for a key and this expected version, and change nothing."""
        if expected_version is not None:
            self._check_version(("state", key), f"state key {key!r}", expected_version, self._state_version(key))

    def change_state_nowait(self, decision: StatePut | StateDeleted) -> int:
        """Change a key in the collecting group, and return the lsn.

        REQUIRES: `check_state_size` and `check_state_version` accept the change.
        """
        return self._decide(decision, 0, pending=self._version_note(("state", decision.key), decision))

    def _state_version(self, key: bytes) -> int:
        found = self.get_state(key)
        return found.version if found is not None else 0

    def get_state(self, key: bytes) -> StateValue | None:
        """A committed value that has not expired; None if there is none."""
        return self._views.state.get(key, self._expiry_us())

    async def scan_state(
        self, prefix: bytes, after: bytes | None, limit: int, size_bytes: int = LARGEST_SCAN_BYTES
    ) -> tuple[list[StateValue], bool]:
        """A page of committed values whose keys have a prefix, sorted by key, after ``after``.

        Args:
            prefix: Prefix of the keys.
            after: Key of the last value of the page before.
            limit: Largest number of values.
            size_bytes: The page ends at about this many bytes of keys and values.

        Returns:
            Values, and whether others may follow.
        """
        found: list[StateValue] = []
        step = TimeSlice()
        for value in self._views.state.scan_in_steps(prefix, self._expiry_us(), after=after):
            if value is not None:
                found.append(value)
                size_bytes -= len(value.key) + len(value.value)
                if len(found) >= limit or size_bytes <= 0:
                    return found, True
            if step.is_over:
                await step.rest()
        return found, False

    async def expire_state(self) -> None:
        """Delete the expired values, and return when that is durable.

        REQUIRES: one call at a time.

        Raises:
            StorageFailedError: The engine failed before that.
        """
        is_more = True
        while is_more:
            now_us = self._expiry_us()
            keys: list[bytes] = []
            step = TimeSlice()
            for key in self._views.state.expired_in_steps(now_us):
                if key is not None:
                    keys.append(key)
                    if len(keys) == _EXPIRED_AT_ONCE:
                        break
                if step.is_over:
                    await step.rest()
            # A put makes the key live again, and its value must not be deleted: neither one decided since the key was
            # found, nor one that is pending.
            expired = [
                key
                for key in keys
                if ("state", key) not in self._pending_versions and self._views.state.is_expired(key, now_us)
            ]
            for key in expired:
                self._committer.decide(StateDeleted(key), 0)
            if expired:
                await self._committer.wait(self._committer.group)
            is_more = len(keys) == _EXPIRED_AT_ONCE and bool(expired)

    # Producers

    async def open_producer(self, name: str) -> ProducerIdentity:
        """Register a producer or take it over: its epoch is raised, and clients with an older epoch are fenced."""
        validate_name("producer name", name)
        known = self._pending_epochs.get(name) or self._views.producers.get(name)
        if known is None:
            identity = ProducerIdentity(self._committer.next_lsn, 1)
        else:
            # After a restore the next epoch may belong to a client that opened the producer after the backup.
            identity = ProducerIdentity(known.producer_id, max(known.epoch + 1, self._first_epoch))

        def pending(lsn: int) -> Callable[[], None]:
            self._pending_epochs[name] = identity
            return lambda: self._forget_epoch(name, identity)

        opened = ProducerUsed(name, identity.producer_id, identity.epoch, self._expiry_us())
        await self._commit(opened, 0, pending=pending)
        return identity

    def new_producers(self, name: str, beginning: str) -> tuple[int, int] | None:
        """Count the producers whose names begin so, and all producers; None if a producer with this name exists.

        Producers whose opening is not durable yet are counted, too.
        """
        if name in self._pending_epochs or self._views.producers.get(name) is not None:
            return None
        producers = self._views.producers
        pending = [each for each, identity in self._pending_epochs.items() if identity.epoch == 1]
        alike = sum(1 for each in pending if each.startswith(beginning))
        return producers.count(beginning) + alike, producers.count("") + len(pending)

    def note_producer_nowait(self, name: str, identity: ProducerIdentity) -> None:
        """Record that a producer is in use, in the collecting group."""
        if name not in self._pending_epochs:
            noted = ProducerUsed(name, identity.producer_id, identity.epoch, self._expiry_us())
            self._committer.decide(noted, 0)

    def delete_producer_nowait(self, name: str, producer_id: int, deleted: Callable[[], None]) -> None:
        """Delete a producer that is not in use, in the collecting group; call back when that is published."""
        if name not in self._pending_epochs:
            self._committer.decide(ProducerDeleted(name, producer_id), 0)
            self._committer.group.held.append(deleted)

    def _forget_epoch(self, name: str, identity: ProducerIdentity) -> None:
        if self._pending_epochs.get(name) is identity:
            del self._pending_epochs[name]


def check_state_size(key: bytes, value: bytes) -> None:
    """Raise LimitExceededError if a key or value of the state store is too large."""
    if not 0 < len(key) <= LARGEST_KEY_BYTES or len(value) > LARGEST_STATE_BYTES:
        raise LimitExceededError(
            f"state key of {len(key)} bytes with a value of {len(value)} bytes: a key has 1 to {LARGEST_KEY_BYTES} "
            f"bytes, a value at most {LARGEST_STATE_BYTES}"
        )
