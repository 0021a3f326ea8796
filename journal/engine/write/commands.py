"""Decisions that are not appends: shards created, switched, trimmed; cursors and state set; producers opened.

Each is decided once, against the views and what is still pending, becomes an entry, and is answered when that entry is
durable. What is decided before something else is also committed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.entry_payloads import (
    CursorCommitted,
    CursorDeleted,
    Decision,
    ProducerDeleted,
    ProducerUsed,
    Rolled,
    Sealed,
    ShardConfigured,
    ShardCreated,
    ShardDeleted,
    StateDeleted,
    StatePut,
    Trimmed,
)
from journal.engine.wal.group_commit import Committer, Group
from shards.errors import (
    InvalidRequestError,
    LimitExceededError,
    OffsetOutOfRangeError,
    ShardExistsError,
    StorageError,
    afresh,
)
from shards.model import Cursor, Mode, ProducerIdentity, Retention, ShardConfig, ShardInfo, StateValue
from shards.segments.shard import BEING_DELETED, Shard
from shards.topics.names import validate_name, validate_shard_name
from shards.views.compare_and_set import check

# What frees space, or needs next to none, is done on a full disk as well.
_FREEING = (ShardDeleted, ShardConfigured, Trimmed, Sealed, CursorDeleted, StateDeleted, ProducerDeleted)

LARGEST_STATE_BYTES = 1 << 20
LARGEST_KEY_BYTES = 4096
LARGEST_SCAN_BYTES = 8 << 20
"""A page of a scan ends with about so many bytes unless the caller wants fewer."""

_EXPIRED_AT_ONCE = 500


class Commands:
    """Everything a client can change apart from appending records.

    All methods that change something return when it is durable and published, and raise StorageFailedError when it
    never will be. A caller that is cancelled while waiting has made its decision all the same.
    """

    def __init__(
        self,
        committer: Committer,
        views: Views,
        table: ShardTable,
        *,
        created_us: Callable[[], int],
        expiry_us: Callable[[], int],
        first_epoch: int,
        max_shards: int,
        default_config: Callable[[ShardConfig], ShardConfig],
    ) -> None:
        self._committer = committer
        self._views = views
        self._table = table
        self._created_us = created_us
        self._expiry_us = expiry_us
        self._first_epoch = first_epoch
        self._max_shards = max_shards
        self._default_config = default_config
        self._pending_names: dict[str, Group] = {}
        self._pending_versions: dict[Hashable, int] = {}
        self._pending_epochs: dict[str, ProducerIdentity] = {}
        self.refuse: StorageError | None = None

    async def _commit(
        self,
        decision: Decision,
        shard_id: int,
        *,
        is_creation: bool = False,
        pending: Callable[[int], Callable[[], None]] | None = None,
    ) -> int:
        """Decide and wait until it is durable; gives the lsn.

        Args:
            decision: What is decided.
            shard_id: Its shard, or 0.
            is_creation: The entry's lsn is the shard's id.
            pending: Called with the lsn; notes what later decisions have to see before this one is in the views, and
                gives the call that takes the note back. That happens when the entry is published, not when the caller
                goes away: a cancelled caller's decision stands.
        """
        self.check_may_change(is_freeing=isinstance(decision, _FREEING))
        self._committer.close_if_long()
        lsn = self._decide(decision, shard_id, is_creation=is_creation, pending=pending)
        await self._committer.wait(self._committer.group)
        return lsn

    def check_may_change(self, *, is_freeing: bool = False) -> None:
        """Raise what stands against any change now: the disk failed, or is full and the change frees nothing."""
        if self._committer.failure is not None:
            raise afresh(self._committer.failure)
        if self.refuse is not None and not is_freeing:
            raise afresh(self.refuse)

    def _decide(
        self,
        decision: Decision,
        shard_id: int,
        *,
        is_creation: bool = False,
        pending: Callable[[int], Callable[[], None]] | None = None,
    ) -> int:
        lsn = self._committer.decide(decision, shard_id, is_creation=is_creation)
        if pending is not None:
            self._committer.group.held.append(pending(lsn))
        return lsn

    # Shards

    async def create_shard(self, name: str, config: ShardConfig, *, exist_ok: bool = False) -> ShardInfo:
        """Create a shard; with ``exist_ok`` one that is there is returned as it is.

        Raises:
            ShardExistsError: It is there, and ``exist_ok`` was not given.
            InvalidNameError: The name breaks the rules of topic names.
            LimitExceededError: The node has as many shards as it may.
        """
        validate_shard_name(name)
        while (creating := self._pending_names.get(name)) is not None:
            # Somebody is creating it right now: what is true of it is known when that is durable.
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
            # Somebody is deleting it right now: it is deleted when that is durable.
            await self._committer.wait_for_all()
            return

        def pending(_: int) -> Callable[[], None]:
            shard.deleted = True
            shard.damage = shard.damage or BEING_DELETED
            return lambda: None

        await self._commit(ShardDeleted(name), shard.shard_id, pending=pending)

    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        """Change how a shard is kept from now on."""
        shard = self._usable(name)
        kept = shard.config.retention if retention is None else retention
        size = shard.config.segment_bytes if segment_bytes is None else segment_bytes
        await self._commit(ShardConfigured(kept, size), shard.shard_id)
        return shard.info(with_segments=False)

    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        """Switch a shard to memory or file mode while it is in use.

        Seals the active segment and opens the next one in the other mode: no record moves, offsets go on.
        """
        shard = self._usable(name)
        if shard.in_memory_mode != (mode is Mode.MEMORY):
            self._roll(shard, mode)
        # Also if somebody else has just switched it: the answer promises that it is durable.
        await self._committer.wait_for_all()
        return shard.info(with_segments=False)

    async def seal(self, name: str) -> ShardInfo:
        """Close the active segment; the next record begins a new one. An empty segment stays as it is."""
        shard = self._usable(name)
        active = shard.active()
        if active is not None and active.next_offset > active.base_offset:
            self._roll(shard, Mode.MEMORY if shard.in_memory_mode else Mode.FILE)
            await self._committer.wait(self._committer.group)
        return shard.info(with_segments=True)

    async def record_seal(self, shard: Shard, sealed: Sealed) -> None:
        """Let a Parquet file that is durably in its place stand for a closed log segment of the shard.

        Raises:
            StorageFailedError: Whether it stands for it is known after a restart.
        """
        await self._commit(sealed, shard.shard_id)

    def roll_nowait(self, shard: Shard) -> None:
        """Close the active segment and go on in a new one of the same mode, in the group that is being collected."""
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
            OffsetOutOfRangeError: The shard has not got that far.
        """
        shard = self._usable(name)
        if before_offset > shard.published_offset:
            raise OffsetOutOfRangeError(name, before_offset, shard.start_offset, shard.published_offset)
        if before_offset > shard.start_offset:
            await self._commit(Trimmed(before_offset), shard.shard_id)
        return shard.info(with_segments=False)

    def trim_nowait(self, shard: Shard, before_offset: int) -> None:
        """The same for retention, in the group that is being collected."""
        self._committer.decide(Trimmed(before_offset), shard.shard_id)

    def _usable(self, name: str) -> Shard:
        shard = self._table.by_name(name)
        shard.check_usable()
        return shard

    # Cursors

    async def commit_cursor(self, shard_name: str, name: str, offset: int, expected_version: int | None) -> Cursor:
        """Set a cursor, if its version is the expected one (None: whatever it is; 0: it must not exist).

        Raises:
            VersionConflictError: It is not.
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
        """Set a cursor, whatever it is, in the group that is being collected, which is given back to be waited for.

        Raises:
            StorageError: It is refused; nothing was decided.
        """
        shard.check_usable()
        self.check_may_change()
        decision = CursorCommitted(name, offset)
        note = self._version_note(("cursor", shard.shard_id, name), decision)
        self._decide(decision, shard.shard_id, pending=note)
        return self._committer.group

    async def wait_for(self, group: Group) -> None:
        """Wait until a group of decisions is durable and published.

        Raises:
            StorageFailedError: It never will be.
        """
        await self._committer.wait(group)

    @property
    def has_failed(self) -> bool:
        """Whether the engine makes nothing durable any more."""
        return self._committer.failure is not None

    async def delete_cursor(self, shard_name: str, name: str, expected_version: int | None) -> None:
        """Remove a cursor, under the same condition."""
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
        """A cursor as it is committed."""
        return self._views.cursors.get(self._usable(shard_name).shard_id, name)

    def list_cursors(self, shard_name: str, after: str = "", limit: int | None = None) -> list[Cursor]:
        """Cursors of a shard, by name, behind ``after``: at most ``limit``. The shard is not opened for that."""
        shard = self._table.peek_by_name(shard_name)
        shard.check_usable()
        return self._views.cursors.list(shard.shard_id, after, limit)

    # State

    async def put_state(self, key: bytes, value: bytes, expected_version: int | None, expires_at_us: int) -> StateValue:
        """Set a key of the state store, if its version is the expected one.

        Raises:
            VersionConflictError: It is not.
            LimitExceededError: Key or value is too large.
        """
        check_state_size(key, value)
        decision = StatePut(key, value, expires_at_us)
        lsn = await self._compare_and_set(
            ("state", key), f"state key {key!r}", expected_version, self._state_version(key), decision, 0
        )
        return StateValue(key, value, lsn, expires_at_us)

    async def delete_state(self, key: bytes, expected_version: int | None) -> None:
        """Remove a key, under the same condition; one that is not there is no error unless a version was expected."""
        await self._compare_and_set(
            ("state", key), f"state key {key!r}", expected_version, self._state_version(key), StateDeleted(key), 0
        )

    def check_state_version(self, key: bytes, expected_version: int | None) -> None:
        """Raise what stands against changing a key of this version, as `put_state` does, and change nothing."""
        if expected_version is not None:
            self._check_version(("state", key), f"state key {key!r}", expected_version, self._state_version(key))

    def change_state_nowait(self, decision: StatePut | StateDeleted) -> int:
        """Change a key in the group that is being collected; gives the lsn.

        REQUIRES: `check_state_size` and `check_state_version` refuse nothing.
        """
        return self._decide(decision, 0, pending=self._version_note(("state", decision.key), decision))

    def _state_version(self, key: bytes) -> int:
        found = self.get_state(key)
        return found.version if found is not None else 0

    def get_state(self, key: bytes) -> StateValue | None:
        """A committed value that has not expired."""
        return self._views.state.get(key, self._expiry_us())

    async def scan_state(
        self, prefix: bytes, after: bytes | None, limit: int, size_bytes: int = LARGEST_SCAN_BYTES
    ) -> tuple[list[StateValue], bool]:
        """A page of committed values whose keys have a prefix, by key, behind ``after``.

        Args:
            prefix: Of the keys.
            after: Key of the last value of the page before.
            limit: Most values.
            size_bytes: With about so many bytes of keys and values the page ends.

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
        """Remove the values that have expired, and return when that is durable.

        REQUIRES: one call at a time.

        Raises:
            StorageFailedError: It never will be.
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
            # A put gives a key a new life and must not be removed behind it: one that was decided since the key was
            # found, or that is on its way.
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

    async def _compare_and_set(
        self, key: Hashable, what: str, expected: int | None, found: int, decision: Decision, shard_id: int
    ) -> int:
        self._check_version(key, what, expected, found)
        return await self._commit(decision, shard_id, pending=self._version_note(key, decision))

    def _check_version(self, key: Hashable, what: str, expected: int | None, found: int) -> None:
        check(what, expected, self._pending_versions.get(key, found))

    def _version_note(self, key: Hashable, decision: Decision) -> Callable[[int], Callable[[], None]]:
        """What `_decide` notes so that later decisions see this version before it is in the views."""
        removes = isinstance(decision, CursorDeleted | StateDeleted)

        def pending(lsn: int) -> Callable[[], None]:
            version = 0 if removes else lsn
            self._pending_versions[key] = version
            return lambda: self._forget_version(key, version)

        return pending

    def _forget_version(self, key: Hashable, version: int) -> None:
        # A later decision about the same key may be pending by now.
        if self._pending_versions.get(key) == version:
            del self._pending_versions[key]

    # Producers

    async def open_producer(self, name: str) -> ProducerIdentity:
        """Register a producer, or take it over: its epoch rises and older holders are fenced."""
        validate_name("producer name", name)
        known = self._pending_epochs.get(name) or self._views.producers.get(name)
        if known is None:
            identity = ProducerIdentity(self._committer.next_lsn, 1)
        else:
            # After a restore the next epoch may have been given out already, to a holder that is not in the backup.
            identity = ProducerIdentity(known.producer_id, max(known.epoch + 1, self._first_epoch))

        def pending(lsn: int) -> Callable[[], None]:
            self._pending_epochs[name] = identity
            return lambda: self._forget_epoch(name, identity)

        opened = ProducerUsed(name, identity.producer_id, identity.epoch, self._expiry_us())
        await self._commit(opened, 0, pending=pending)
        return identity

    def new_producers(self, name: str, beginning: str) -> tuple[int, int] | None:
        """How many producers there are under a beginning and in all, or None if there is one of the name already.

        Those whose opening is on its way to the disk are counted as well.
        """
        if name in self._pending_epochs or self._views.producers.get(name) is not None:
            return None
        producers = self._views.producers
        pending = [each for each, identity in self._pending_epochs.items() if identity.epoch == 1]
        alike = sum(1 for each in pending if each.startswith(beginning))
        return producers.count(beginning) + alike, producers.count("") + len(pending)

    def note_producer_nowait(self, name: str, identity: ProducerIdentity) -> None:
        """Note that a producer is in use, in the group that is being collected."""
        if name not in self._pending_epochs:
            noted = ProducerUsed(name, identity.producer_id, identity.epoch, self._expiry_us())
            self._committer.decide(noted, 0)

    def delete_producer_nowait(self, name: str, producer_id: int, deleted: Callable[[], None]) -> None:
        """Delete a producer that is not in use, in the group that is being collected; call back when that is done."""
        if name not in self._pending_epochs:
            self._committer.decide(ProducerDeleted(name, producer_id), 0)
            self._committer.group.held.append(deleted)

    def _forget_epoch(self, name: str, identity: ProducerIdentity) -> None:
        if self._pending_epochs.get(name) is identity:
            del self._pending_epochs[name]


def check_state_size(key: bytes, value: bytes) -> None:
    """Raise LimitExceededError for a key or value of the state store that is too large."""
    if not 0 < len(key) <= LARGEST_KEY_BYTES or len(value) > LARGEST_STATE_BYTES:
        raise LimitExceededError(
            f"state key of {len(key)} bytes with a value of {len(value)} bytes: a key has 1 to {LARGEST_KEY_BYTES} "
            f"bytes, a value at most {LARGEST_STATE_BYTES}"
        )
