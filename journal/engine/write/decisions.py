"""Committing decisions: each is decided once, against the published state and all pending decisions.

The commands are in `commands`. A decision becomes an entry, and is answered when that entry is durable and published.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from journal.engine.wal.entry_payloads import (
    CursorDeleted,
    Decision,
    FilesConverted,
    ProducerDeleted,
    ShardConfigured,
    ShardDeleted,
    StateDeleted,
    Trimmed,
)
from journal.engine.wal.group import Group
from journal.engine.wal.group_commit import Committer
from shards.errors import CursorConflictError, InvalidRequestError, StorageError, VersionConflictError, afresh

NOT_THERE = 0
"""Version of an object that does not exist. Versions of existing ones are lsns, which begin at 1."""

# Changes that free space, or need nearly none, are also made on a full disk.
_FREEING = (
    ShardDeleted,
    ShardConfigured,
    Trimmed,
    FilesConverted,
    CursorDeleted,
    StateDeleted,
    ProducerDeleted,
)


class Decisions:
    """Commits decisions in the order in which they were made.

    Attributes:
        refuse: Why changes that free no space are refused now; None if they are accepted.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._pending_versions: dict[Hashable, int] = {}
        self.refuse: StorageError | None = None

    async def _commit(
        self,
        decision: Decision,
        shard_id: int,
        *,
        is_creation: bool = False,
        pending: Callable[[int], Callable[[], None]] | None = None,
    ) -> int:
        """Make a decision, wait until it is durable, and return its lsn.

        Args:
            decision: The decision.
            shard_id: Its shard, or 0.
            is_creation: The entry's lsn is the shard's id.
            pending: Called with the lsn; records what later decisions must take into account before this one is in the
                views, and returns the function that removes this record. It is called when the entry is published, not
                when the caller is cancelled: the decision remains valid.
        """
        self.check_may_change(is_freeing=isinstance(decision, _FREEING))
        self._committer.close_if_long()
        lsn = self._decide(decision, shard_id, is_creation=is_creation, pending=pending)
        await self._committer.wait(self._committer.group)
        return lsn

    def check_may_change(self, *, is_freeing: bool = False) -> None:
        """Raise the error for any change now: the disk failed, or it is full and the change frees no space."""
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

    async def wait_for(self, group: Group) -> None:
        """Wait until a group of decisions is durable and published.

        Raises:
            StorageFailedError: The engine failed before that.
        """
        await self._committer.wait(group)

    @property
    def has_failed(self) -> bool:
        """Whether the engine has failed and makes nothing durable any more."""
        return self._committer.failure is not None

    async def _compare_and_set(
        self, key: Hashable, what: str, expected: int | None, found: int, decision: Decision, shard_id: int
    ) -> int:
        self._check_version(key, what, expected, found)
        return await self._commit(decision, shard_id, pending=self._version_note(key, decision))

    def _check_version(self, key: Hashable, what: str, expected: int | None, found: int) -> None:
        check_version(what, expected, self._pending_versions.get(key, found))

    def _version_note(self, key: Hashable, decision: Decision) -> Callable[[int], Callable[[], None]]:
        """The ``pending`` argument of `_decide` that makes this version visible to later decisions."""
        removes = isinstance(decision, CursorDeleted | StateDeleted)

        def pending(lsn: int) -> Callable[[], None]:
            version = 0 if removes else lsn
            self._pending_versions[key] = version
            return lambda: self._forget_version(key, version)

        return pending

    def _forget_version(self, key: Hashable, version: int) -> None:
        # A later decision about the same key may be pending now.
        if self._pending_versions.get(key) == version:
            del self._pending_versions[key]


def check_version(what: str, expected_version: int | None, found_version: int) -> None:
    """Refuse a change that was based on another version than the present one: compare-and-set, of cursors and state.

    The caller determines the found version, from the views and the pending changes; an expired value does not exist.

    Args:
        what: The object, for the error message, such as ``cursor 'billing' of shard 'orders'``.
        expected_version: None accepts any version; 0 (`NOT_THERE`) requires that it does not exist.
        found_version: Present version; 0 if it does not exist.

    Raises:
        VersionConflictError: The versions differ.
        InvalidRequestError: The expected version is negative.
    """
    if expected_version is None:
        return
    if expected_version < 0:
        raise InvalidRequestError(
            f"expected version of {what} is {expected_version}; it must be a version that was read, "
            f"{NOT_THERE} for 'does not exist', or left out"
        )
    if expected_version != found_version:
        raise VersionConflictError(what, expected_version, found_version)


def check_cursor(shard: str, name: str, max_offset: int, found_offset: int | None) -> None:
    """Refuse a change that requires a cursor to be at an offset or before it, if it is after it.

    Args:
        found_offset: None if the cursor does not exist, which is accepted.

    Raises:
        CursorConflictError: The cursor is after ``max_offset``.
    """
    if found_offset is not None and found_offset > max_offset:
        raise CursorConflictError(shard, name, max_offset, found_offset)
