"""Which parts of the log files stay in the page cache: the ones written last, up to a bound. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_PAGE_BYTES = 4096


class WrittenRange(NamedTuple):
    """Bytes of a log file that were written."""

    path: str
    position: int
    size_bytes: int


class PageCache:
    """Records written ranges, oldest first, and returns those beyond the bound.

    A range counts as at least one page, so the number of recorded ranges is bounded, too.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._ranges: deque[WrittenRange] = deque()
        self._held_bytes = 0

    def add(self, written: WrittenRange) -> None:
        """Add a range as the newest."""
        self._ranges.append(written)
        self._held_bytes += _weight(written)

    def overdue(self) -> list[WrittenRange]:
        """Remove the oldest ranges beyond the bound and return them."""
        gone = []
        while self._held_bytes > self._limit_bytes and self._ranges:
            oldest = self._ranges.popleft()
            self._held_bytes -= _weight(oldest)
            gone.append(oldest)
        return gone


def _weight(written: WrittenRange) -> int:
    return max(_PAGE_BYTES, written.size_bytes)
