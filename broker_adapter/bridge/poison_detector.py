"""Finds the record that causes outages of a sink whenever it is sent. Pure.

A web service that answers one record with 500 counts as out, but passes the next check: the record would be sent for
ever. So the records that were in flight are sent again in halves, until one record is alone. After a number of outages
with that record alone it becomes a dead letter. A service that answers 500 to everything looks the same: therefore each
further record needs twice as many outages as the one before, until the sink has accepted something.
"""

from __future__ import annotations

from typing import Final

_MAX_DOUBLINGS: Final = 20


class PoisonDetector:
    """The outages that one driver has seen.

    Args:
        max_outages: Number of outages of one record alone after which it becomes a dead letter; 0: never.
    """

    def __init__(self, max_outages: int) -> None:
        self._max_outages = max_outages
        self._limit = 0
        self._careful_to_offset = 0
        self._offset = -1
        self._alone_count = 0
        self._blamed_count = 0

    @property
    def is_sought(self) -> bool:
        """Whether such a record is being searched for; batches are then written one at a time."""
        return self._limit > 0

    def at_most(self, record_count: int) -> int:
        """The limit of records for the next batch, given the limit that applies otherwise."""
        return min(record_count, self._limit) if self._limit else record_count

    def failed(self, offset: int, record_count: int) -> bool:
        """Note an outage while a batch was in flight alone.

        Args:
            offset: Of its first record.
            record_count: Of the batch.

        Returns:
            Whether its only record is to become a dead letter.
        """
        if not self._max_outages:
            return False
        self._limit = max(1, record_count // 2)
        if record_count > 1:
            self._careful_to_offset = max(self._careful_to_offset, offset + record_count)
            return False
        self._careful_to_offset = max(self._careful_to_offset, offset + 1)
        self._alone_count = self._alone_count + 1 if offset == self._offset else 1
        self._offset = offset
        if self._alone_count < self._max_outages << min(self._blamed_count, _MAX_DOUBLINGS):
            return False
        self._blamed_count += 1
        self._alone_count = 0
        return True

    def succeeded(self, next_offset: int) -> None:
        """Note that the sink accepted a batch.

        Args:
            next_offset: Offset after it.
        """
        self._blamed_count = 0
        if next_offset >= self._careful_to_offset:
            self._limit = 0
