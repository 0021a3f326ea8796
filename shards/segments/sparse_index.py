"""Positions of batches in a segment, one entry for about every 64 KiB: by offset, lsn and time.

A lookup returns the position of a batch at or before the wanted one; from there the caller reads header by header. The
entries are also written to a file next to the log segment (`<segment>.index`), so that a segment is opened without
reading it; each stored entry has its own checksum, and a damaged index is rebuilt from the segment.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

from crc32c import crc32c

INTERVAL_BYTES = 64 * 1024

_ENTRY = struct.Struct("<QQQQ")
_STORED = struct.Struct("<32sII")
STORED_SIZE = _STORED.size
"""Bytes of one entry in an index file: offset, position, lsn, time (u64 each), CRC-32C of them, 4 zero bytes."""


class SparseIndex:
    """Four parallel columns, each never going back.

    Invariant: no record *before* ``positions[i]`` has a later timestamp than ``times[i]``, so that everything before an
    entry whose time is below t is older than t, even when producers' clocks jump. After a recovery an entry may have a
    time that is higher than that of any record before it: the views record the newest timestamp of a segment before all
    of its records are in its file.
    """

    __slots__ = ("lsns", "offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.lsns = array("Q")
        self.times = array("Q")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, position: int, lsn: int, newest_before_us: int) -> None:
        """Add a batch with this base offset and lsn at this position."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.lsns.append(lsn)
        self.times.append(newest_before_us)

    def add_later(self, other: SparseIndex) -> None:
        """Add those entries of another index of the same segment that are after all of this one."""
        first = bisect_right(other.positions, self.positions[-1]) if self.positions else 0
        self.offsets += other.offsets[first:]
        self.positions += other.positions[first:]
        self.lsns += other.lsns[first:]
        self.times += other.times[first:]

    def position_before_offset(self, offset: int, default: int) -> int:
        """Position of the last entry whose batch begins at or before the offset, else ``default``."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 else default

    def position_before_lsn(self, lsn: int, default: int) -> int:
        """Position of the last entry whose batch has an lsn at or below this one, else ``default``."""
        at = bisect_right(self.lsns, lsn) - 1
        return self.positions[at] if at >= 0 else default

    def position_before_time(self, timestamp_us: int, default: int) -> int:
        """Position of the last entry before which every record is older than the time, else ``default``."""
        at = bisect_left(self.times, timestamp_us) - 1
        return self.positions[at] if at >= 0 else default

    def last_position_up_to(self, position: int, after: int) -> int:
        """Largest indexed position in ``(after, position]``, or the first after ``after``, or 0 if there is none."""
        at = bisect_right(self.positions, position) - 1
        if at >= 0 and self.positions[at] > after:
            return self.positions[at]
        at = bisect_right(self.positions, after)
        return self.positions[at] if at < len(self.positions) else 0

    def offset_at(self, position: int) -> int:
        """Base offset of the batch at an indexed position."""
        return self.offsets[bisect_left(self.positions, position)]

    def encode(self, first: int, stop: int) -> bytes:
        """Encode the entries from number ``first`` up to ``stop``."""
        stored = []
        for at in range(first, stop):
            entry = _ENTRY.pack(self.offsets[at], self.positions[at], self.lsns[at], self.times[at])
            stored.append(_STORED.pack(entry, crc32c(entry), 0))
        return b"".join(stored)

    @classmethod
    def decode(cls, stored: bytes, count: int) -> SparseIndex | None:
        """Decode ``count`` entries; None if some are missing or damaged (the caller rebuilds the index)."""
        if len(stored) < count * STORED_SIZE:
            return None
        index = cls()
        for entry, checksum, _ in _STORED.iter_unpack(stored[: count * STORED_SIZE]):
            if crc32c(entry) != checksum:
                return None
            index.add(*_ENTRY.unpack(entry))
        return index
