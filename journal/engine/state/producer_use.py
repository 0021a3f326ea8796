"""Which connection uses a producer now, and which producers may still repeat batches that they have sent before.

The state of a producer is dropped only when it cannot send such a batch any more: see `ProducerUse.may_return`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shards.errors import StaleEpochError

RETURNS_WITHIN_S: Final = 2 * 3600.0
"""How long after the end of its connection, or the start of the server, a producer may still repeat batches."""

_IN_PROCESS: Final = 0


class ProducerUse:
    """The producers that were opened or used since the start.

    Args:
        clock: Returns seconds, never going back.

    Attributes:
        owners: Number of the newest connection that used a producer, by producer id; read-only for others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self.owners: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._used_by: dict[int, set[int]] = {_IN_PROCESS: set()}
        # Sorted by time.
        self._left_at: dict[int, float] = {}

    def take(self, producer_id: int, epoch: int, number: int) -> None:
        """Note that a connection uses a producer under the producer's present epoch.

        Raises:
            StaleEpochError: A newer connection has used it under this epoch.
        """
        owner = self.owners.get(producer_id)
        if owner == number and self._epochs[producer_id] == epoch:
            return
        # Users of an older epoch are fenced by the epoch alone, whatever their connection.
        if owner is not None and owner > number and self._epochs[producer_id] == epoch:
            # Bytes of an older connection may still be in a buffer; their sequence may belong to another batch now.
            raise StaleEpochError(
                f"producer {producer_id} has been used over a newer connection; this one may no longer send for it"
            )
        if owner is not None:
            self._used_by.get(owner, set()).discard(producer_id)
        self.owners[producer_id] = number
        self._epochs[producer_id] = epoch
        self._used_by.setdefault(number, set()).add(producer_id)
        self._left_at.pop(producer_id, None)

    def opened(self, producer_id: int, epoch: int, number: int) -> None:
        """Note that a connection has opened a producer and will use it. Other connections may have opened it since."""
        if self._epochs.get(producer_id, 0) < epoch:
            self.take(producer_id, epoch, number)

    def disconnected(self, number: int) -> None:
        """Note that a connection is closed."""
        now = self._clock()
        for producer_id in self._used_by.pop(number, ()):
            self._left_at[producer_id] = now

    def is_used(self, producer_id: int) -> bool:
        """Whether an open connection uses it, or one did a short time ago."""
        if self.owners.get(producer_id) in self._used_by:
            return True
        left_at = self._left_at.get(producer_id)
        return left_at is not None and self._clock() - left_at < RETURNS_WITHIN_S

    def may_return(self, producer_id: int) -> bool:
        """Whether it may repeat batches that it has sent before: it is in use, or the server started shortly before."""
        return self._clock() - self._started_at < RETURNS_WITHIN_S or self.is_used(producer_id)

    def forget(self, producer_id: int) -> None:
        """Remove a deleted producer."""
        self._used_by.get(self.owners.pop(producer_id, -1), set()).discard(producer_id)
        self._epochs.pop(producer_id, None)
        self._left_at.pop(producer_id, None)

    def forget_left(self) -> None:
        """Remove the times of producers that are not expected to return; cost in proportion to the number removed."""
        now = self._clock()
        for producer_id, left_at in list(self._left_at.items()):
            if now - left_at < RETURNS_WITHIN_S:
                return
            del self._left_at[producer_id]
