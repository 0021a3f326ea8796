"""Settings of a cache queue: its bounds, where records are kept, and its overflow policy."""

from __future__ import annotations

import enum
from typing import Final

import attrs

from shards.model import Mode, ShardConfig

_MICROSECONDS: Final = 1_000_000
_SEGMENTS_PER_QUEUE: Final = 32
_MIN_SEGMENT_BYTES: Final = 1 << 20
_MAX_SEGMENT_BYTES: Final = 64 << 20


class QueueMode(enum.StrEnum):
    """Where waiting records are kept: in the store's memory, in its files, or in memory up to a bound, then files."""

    MEMORY = "memory"
    FILE = "file"
    HYBRID = "hybrid"


class Overflow(enum.StrEnum):
    """What happens to a record when its queue is full.

    `REJECT` refuses it with an error to its producer. `DROP_OLDEST` drops the oldest records to make room,
    `DROP_NEWEST` drops the new record; both count the dropped ones, and the producer gets a normal acknowledgement.
    """

    REJECT = "reject"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"


@attrs.frozen(slots=True, kw_only=True)
class QueueSettings:
    """Bounds of a cache queue. 0 means no bound.

    Attributes:
        mode: Where waiting records are kept.
        max_bytes: Most bytes, as stored.
        max_records: Most records.
        max_age_s: A record that has waited longer is dropped, whatever the overflow policy, in seconds.
        memory_bytes: In mode `HYBRID`: with more bytes than this, records are stored in files.
        overflow: What happens to records beyond ``max_bytes`` and ``max_records``.
    """

    mode: QueueMode = QueueMode.FILE
    max_bytes: int = 1 << 30
    max_records: int = 0
    max_age_s: int = 0
    memory_bytes: int = 64 << 20
    overflow: Overflow = Overflow.REJECT

    def has_room(self, record_count: int, size_bytes: int) -> bool:
        """Whether a queue with this content may take more."""
        return (not self.max_records or record_count < self.max_records) and (
            not self.max_bytes or size_bytes < self.max_bytes
        )

    def expires_at_us(self, now_us: int) -> int:
        """When a record that is put in now expires, in microseconds since 1970; 0 for never."""
        return now_us + self.max_age_s * _MICROSECONDS if self.max_age_s else 0

    @property
    def shard_config(self) -> ShardConfig:
        """Configuration of the queue's shard. Its segments are small, so that drained ones are dropped soon."""
        segment_bytes = _MAX_SEGMENT_BYTES
        if self.max_bytes:
            segment_bytes = min(segment_bytes, max(_MIN_SEGMENT_BYTES, self.max_bytes // _SEGMENTS_PER_QUEUE))
        mode = Mode.FILE if self.mode is QueueMode.FILE else Mode.MEMORY
        return ShardConfig(mode=mode, segment_bytes=segment_bytes)
