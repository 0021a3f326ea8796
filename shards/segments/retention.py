"""The decision which records a shard's retention drops. Pure; it is carried out like any other trim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from shards.model import Retention

_LARGEST_SHARE: Final = 16


class RetainedSegment(Protocol):
    """The properties of a segment for the decision: those of `SegmentInfo`, and the time of its newest append."""

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
    def closed(self) -> bool:
        """Whether it is closed, as all segments but the active one are."""
        ...


def due(retention: Retention, segments: Sequence[RetainedSegment], now_us: int) -> int:
    """Return the offset below which records should be trimmed: a boundary between segments.

    Whole closed segments are dropped, oldest first, while the oldest exceeds a bound: its newest record is older than
    `max_age_s`, or the remaining ones have more than `max_bytes` or `max_records`. The active segment is counted but
    never dropped.

    Args:
        retention: The bounds; 0 means no bound.
        segments: All segments of the shard in offset order.
        now_us: The time for computing ages.

    Returns:
        The next offset of the newest segment that is dropped, 0 if none is. Lost records before the oldest remaining
        segment are in no segment: they stay in the shard's range, so that readers get the gap.
    """
    total_bytes = sum(segment.size_bytes for segment in segments)
    total_records = sum(segment.next_offset - segment.base_offset for segment in segments)
    trim_offset = 0
    for segment in segments:
        too_old = retention.max_age_s and now_us - segment.newest_append_us > retention.max_age_s * 1_000_000
        too_large = retention.max_bytes and total_bytes > retention.max_bytes
        too_many = retention.max_records and total_records > retention.max_records
        if not segment.closed or not (too_old or too_large or too_many):
            break
        total_bytes -= segment.size_bytes
        total_records -= segment.next_offset - segment.base_offset
        trim_offset = segment.next_offset
    return trim_offset


def may_be_one(retention: Retention, *, record_count: int, size_bytes: int, span_us: int) -> bool:
    """Return whether segments may become one: it has at most a sixteenth of what each bound allows.

    Retention drops whole segments, so a larger one would take records along that the bounds still allow, or keep
    records that are too old.

    Args:
        retention: The bounds; 0 means no bound.
        record_count: Records of the segments together.
        size_bytes: Their bytes.
        span_us: Time between the creation of the first and the newest append of the last, in microseconds.
    """
    return not (
        (retention.max_records and record_count * _LARGEST_SHARE > retention.max_records)
        or (retention.max_bytes and size_bytes * _LARGEST_SHARE > retention.max_bytes)
        or (retention.max_age_s and span_us * _LARGEST_SHARE > retention.max_age_s * 1_000_000)
    )
