"""Up to which lsn everything is visible in a key-value store, where memory mode overtakes what waits for a flush."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_adapter.engines.stored_shard import StoredShard


class CommittedLsn:
    """Remembers the batches that were given an lsn and are not visible yet.

    Args:
        newest_lsn: Tells the highest lsn that was given out.
    """

    def __init__(self, newest_lsn: Callable[[], int]) -> None:
        self._newest_lsn = newest_lsn
        # (lsn, shard, offset after the batch), in the order of their lsns.
        self._unseen: deque[tuple[int, StoredShard, int]] = deque()

    def placed(self, lsn: int, shard: StoredShard, next_offset: int) -> None:
        """A batch has its place; readers see it when the shard is visible up to ``next_offset``."""
        self._unseen.append((lsn, shard, next_offset))

    def settle(self) -> None:
        """Forget what has become visible, or was deleted."""
        unseen = self._unseen
        while unseen and (unseen[0][1].visible_offset >= unseen[0][2] or unseen[0][1].deleted):
            unseen.popleft()

    def value(self) -> int:
        """Every batch with an lsn up to this is visible, or never will be."""
        return self._unseen[0][0] - 1 if self._unseen else self._newest_lsn()
