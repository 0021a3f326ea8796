"""Which connection uses a producer now, and which producers may still send again what they have sent before.

What is known of a producer is forgotten only when it cannot be sent for any more: see `ProducerUse.may_return`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shards.errors import StaleEpochError

RETURNS_WITHIN_S: Final = 2 * 3600.0
"""How long after its connection ended, or the server started, a producer is expected to send again."""

_IN_PROCESS: Final = 0


class ProducerUse:
    """The producers that were opened or sent for since the start.

    Args:
        clock: Seconds, never going backwards.

    Attributes:
        owners: Number of the newest connection that used a producer, by producer id; only to be looked at.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self.owners: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._used_by: dict[int, set[int]] = {_IN_PROCESS: set()}
        # In the order of time.
        self._left_at: dict[int, float] = {}

    def take(self, producer_id: int, epoch: int, number: int) -> None:
        """A connection uses a producer under its present epoch.

        Raises:
            StaleEpochError: A newer connection has used it under this epoch.
        """
        owner = self.owners.get(producer_id)
        if owner == number and self._epochs[producer_id] == epoch:
            return
        # Who used an older epoch, over whatever connection, is fenced by the epoch alone.
        if owner is not None and owner > number and self._epochs[producer_id] == epoch:
            # Bytes of an older connection that still lay in a buffer: their sequence may belong to another batch now.
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
        """A connection has opened a producer, which it is about to use. Others may have opened it again since."""
        if self._epochs.get(producer_id, 0) < epoch:
            self.take(producer_id, epoch, number)

    def disconnected(self, number: int) -> None:
        """A connection is closed."""
        now = self._clock()
        for producer_id in self._used_by.pop(number, ()):
            self._left_at[producer_id] = now

    def is_used(self, producer_id: int) -> bool:
        """Whether it is used over an open connection, or was a short time ago."""
        if self.owners.get(producer_id) in self._used_by:
            return True
        left_at = self._left_at.get(producer_id)
        return left_at is not None and self._clock() - left_at < RETURNS_WITHIN_S

    def may_return(self, producer_id: int) -> bool:
        """Whether it may send again what it has sent before: it is used, or the server started a short time ago."""
        return self._clock() - self._started_at < RETURNS_WITHIN_S or self.is_used(producer_id)

    def forget(self, producer_id: int) -> None:
        """A producer was deleted."""
        self._used_by.get(self.owners.pop(producer_id, -1), set()).discard(producer_id)
        self._epochs.pop(producer_id, None)
        self._left_at.pop(producer_id, None)

    def forget_left(self) -> None:
        """Forget when producers left that are not expected any more; costs no more than there are of them."""
        now = self._clock()
        for producer_id, left_at in list(self._left_at.items()):
            if now - left_at < RETURNS_WITHIN_S:
                return
            del self._left_at[producer_id]
