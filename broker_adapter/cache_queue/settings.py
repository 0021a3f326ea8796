"""What a cache queue may hold and where, and what becomes of what does not fit."""

from __future__ import annotations

import enum
from typing import Final

import attrs

from shards.model import Mode, ShardConfig

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

    @property
    def shard_config(self) -> ShardConfig:
        """How the queue's shard is made. Small segments are dropped sooner when they are drained."""
        segment_bytes = _MAX_SEGMENT_BYTES
        if self.max_bytes:
            segment_bytes = min(segment_bytes, max(_MIN_SEGMENT_BYTES, self.max_bytes // _SEGMENTS_PER_QUEUE))
        mode = Mode.FILE if self.mode is QueueMode.FILE else Mode.MEMORY
        return ShardConfig(mode=mode, segment_bytes=segment_bytes)
