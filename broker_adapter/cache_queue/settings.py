"""What a cache queue may hold and where, and what becomes of what does not fit."""

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
    """Where waiting records lie: in the store's memory, in its files, or in memory until a bound and then in files."""

    MEMORY = "memory"
    FILE = "file"
    HYBRID = "hybrid"


class Overflow(enum.StrEnum):
    """What becomes of a record that finds its queue full.

    `REJECT` tells its producer, who then knows that it was not taken. `DROP_OLDEST` makes room for it, `DROP_NEWEST`
    drops it; both are counted, and the producer is told that all is well.
    """

    REJECT = "reject"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"


@attrs.frozen(slots=True, kw_only=True)
class QueueSettings:
    """Bounds of a cache queue. 0 means no bound.

    Attributes:
        mode: Where what waits lies.
        max_bytes: Bytes, as the store keeps them.
        max_records: Records.
        max_age_s: A record that has waited longer is given up, whatever the overflow policy.
        memory_bytes: In mode `HYBRID`: more than this is stored in files.
        overflow: What becomes of records beyond ``max_bytes`` and ``max_records``.
    """

    mode: QueueMode = QueueMode.FILE
    max_bytes: int = 1 << 30
    max_records: int = 0
    max_age_s: int = 0
    memory_bytes: int = 64 << 20
    overflow: Overflow = Overflow.REJECT

    def has_room(self, record_count: int, size_bytes: int) -> bool:
        """Whether a queue that holds so much may take more."""
        return (not self.max_records or record_count < self.max_records) and (
            not self.max_bytes or size_bytes < self.max_bytes
        )

    def expires_at_us(self, now_us: int) -> int:
        """When what is put in now is given up; 0 for never."""
        return now_us + self.max_age_s * _MICROSECONDS if self.max_age_s else 0

    @property
    def shard_config(self) -> ShardConfig:
        """How the queue's shard is made. Small segments are dropped sooner when they are drained."""
        segment_bytes = _MAX_SEGMENT_BYTES
        if self.max_bytes:
            segment_bytes = min(segment_bytes, max(_MIN_SEGMENT_BYTES, self.max_bytes // _SEGMENTS_PER_QUEUE))
        mode = Mode.FILE if self.mode is QueueMode.FILE else Mode.MEMORY
        return ShardConfig(mode=mode, segment_bytes=segment_bytes)
