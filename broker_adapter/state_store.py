"""What a store has beside records: cursors of shards, keys with values, and transactions over records and keys.

This is a part of `broker_adapter.adapter.StorageAdapter`.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator

from broker_adapter.changes import Changes, Committed
from shards.model import Cursor, StateValue


class StateStore(abc.ABC):
    """Cursors, keys and transactions of one store. Keys and cursors have versions, by which a change can be refused."""

    # Cursors

    @abc.abstractmethod
    async def get_cursor(self, shard: str, name: str) -> Cursor | None:
        """A cursor of a shard, or None."""

    @abc.abstractmethod
    async def list_cursors(self, shard: str) -> list[Cursor]:
        """All cursors of a shard, sorted by name."""

    @abc.abstractmethod
    async def commit_cursor(self, shard: str, name: str, offset: int, *, expected_version: int | None = None) -> Cursor:
        """Set a cursor. Must not return until it would survive a crash (on engines that store on disk).

        Args:
            shard: Name of an existing shard.
            name: Name of the cursor.
            offset: From 0 to the shard's end.
            expected_version: Set it only if it has this version now; 0: only if it does not exist.

        Raises:
            VersionConflictError: It has another version.
            OffsetOutOfRangeError: The offset is past the shard's end.
        """

    @abc.abstractmethod
    async def delete_cursor(self, shard: str, name: str, *, expected_version: int | None = None) -> None:
        """Delete a cursor; deleting one that does not exist does nothing. Durable like `commit_cursor`."""

    # State

    @abc.abstractmethod
    async def get_state(self, key: bytes) -> StateValue | None:
        """The value of a key, or None when there is none or it has expired."""

    @abc.abstractmethod
    async def put_state(
        self, key: bytes, value: bytes, *, expected_version: int | None = None, expires_at_us: int = 0
    ) -> StateValue:
        """Set a key. Must not return until it would survive a crash (on engines that store on disk).

        Args:
            key: At least one byte.
            value: Any bytes.
            expected_version: Set it only if it has this version now; 0: only if it does not exist (or has expired).
            expires_at_us: Time at which it expires, in microseconds since the epoch; 0 means never.

        Raises:
            VersionConflictError: It has another version.
        """

    @abc.abstractmethod
    async def delete_state(self, key: bytes, *, expected_version: int | None = None) -> None:
        """Delete a key; deleting one that does not exist does nothing. Durable like `put_state`."""

    @abc.abstractmethod
    def scan_state(self, prefix: bytes = b"", *, after: bytes | None = None) -> AsyncGenerator[StateValue, None]:
        """All values whose key begins with ``prefix``, in key order; read in several steps, not as one snapshot.

        With ``after``, only those whose key sorts after it. Close it (`contextlib.aclosing`) where the loop may be left
        early, which includes an error.
        """

    # Several changes in one step

    @abc.abstractmethod
    async def commit(self, changes: Changes) -> Committed:
        """Append records and change state in one transaction: all of it or, after any refusal or crash, nothing.

        Must not return until all of it would survive a crash (records of memory-mode shards are lost with the node, as
        always). Readers see all of it or nothing. Of several commits that expect the same version of a key one
        succeeds. Appends that were acknowledged before the commit are stored before it; the order with appends that
        still wait is not defined.

        Args:
            changes: A key may occur in it once. An append is acknowledged at the level of its shard's mode.

        Raises:
            InvalidRequestError: There is nothing to do, or a key occurs twice.
            VersionConflictError: A key has another version than expected.
            CursorConflictError: A cursor is past its ``max_offset``.
            ShardNotFoundError: There is no such shard.
            LimitExceededError: It is too large for one commit.
            ConnectionLostError: The connection to the store was lost, and it is unknown whether the commit was made.
                The versions of the keys show it.
        """
