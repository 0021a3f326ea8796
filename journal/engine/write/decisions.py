"""Committing decisions: each is decided once, against the published state and all pending decisions.

The commands are in `commands`. A decision becomes an entry, and is answered when that entry is durable and published.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from journal.engine.wal.entry_payloads import (
    Converted,
    CursorDeleted,
    Decision,
    ProducerDeleted,
    ShardConfigured,
    ShardDeleted,
    StateDeleted,
    Trimmed,
)
from journal.engine.wal.group_commit import Committer, Group
from shards.errors import StorageError, afresh
from shards.views.compare_and_set import check

# Changes that free space, or need nearly none, are also made on a full disk.
_FREEING = (ShardDeleted, ShardConfigured, Trimmed, Converted, CursorDeleted, StateDeleted, ProducerDeleted)


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
        check(what, expected, self._pending_versions.get(key, found))

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
