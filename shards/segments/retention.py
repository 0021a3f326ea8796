"""What a shard's retention drops: a pure decision over its segments. Carrying it out is a trim like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shards.model import Retention


class RetainedSegment(Protocol):
    """What the decision needs to know of a segment; `shards.model.SegmentInfo` plus the time of its newest append."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def newest_append_us(self) -> int:
        """append_time_us of its last batch; that of its creation if it is empty."""
        ...

    @property
    def sealed(self) -> bool:
        """Whether it is closed for ever, as every segment but the active one is."""
        ...


def due(retention: Retention, segments: Sequence[RetainedSegment], now_us: int) -> int:
    """Return the offset below which records should be trimmed: a border between segments.

    Whole sealed segments go, oldest first, as long as the oldest passes a bound: its newest record is older than
    `max_age_s`, or all that is left is more than `max_bytes` or `max_records`. The active segment counts
    but never goes.

    Args:
        retention: The bounds; 0 means no bound.
        segments: All segments of the shard in offset order.
        now_us: The time that ages are reckoned from.

    Returns:
        The next offset of the newest segment that goes, 0 if none does. What was lost with the memory before the
        oldest segment that stays is no segment: it stays in the shard's range, so that readers are shown the gap.
    """
    total_bytes = sum(segment.size_bytes for segment in segments)
    total_records = sum(segment.next_offset - segment.base_offset for segment in segments)
    trim_offset = 0
    for segment in segments:
        too_old = retention.max_age_s and now_us - segment.newest_append_us > retention.max_age_s * 1_000_000
        too_large = retention.max_bytes and total_bytes > retention.max_bytes
        too_many = retention.max_records and total_records > retention.max_records
        if not segment.sealed or not (too_old or too_large or too_many):
            break
        total_bytes -= segment.size_bytes
        total_records -= segment.next_offset - segment.base_offset
        trim_offset = segment.next_offset
    return trim_offset
