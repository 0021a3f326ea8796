"""Which record may be to blame for outages that come whenever it is on its way. Pure.

A web service that answers 500 to one record is out for the bridge, and well again when it is checked: the record would
come back for ever. So what was on its way is sent again in halves, until one record is alone; after so many outages of
that record alone it is to be set aside. A service that answers 500 to everything looks the same: therefore each further
record takes twice as many outages as the one before, until the sink has taken something.
"""

from __future__ import annotations

from typing import Final

_MAX_DOUBLINGS: Final = 20


class PoisonDetector:
    """What one driver knows of that.

    Args:
        max_outages: So many outages of one record alone; 0: none is ever to blame.
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
        """Whether one is sought: batches go one at a time then."""
        return self._limit > 0

    def at_most(self, record_count: int) -> int:
        """How many records the next batch may have, where it may have so many otherwise."""
        return min(record_count, self._limit) if self._limit else record_count

    def failed(self, offset: int, record_count: int) -> bool:
        """There was an outage while a batch was on its way alone.

        Args:
            offset: Of its first record.
            record_count: Of the batch.

        Returns:
            Whether its only record is to be set aside.
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
        """The sink took a batch.

        Args:
            next_offset: Offset behind it.
        """
        self._blamed_count = 0
        if next_offset >= self._careful_to_offset:
            self._limit = 0
