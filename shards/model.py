"""Plain values that describe shards, cursors and state: used by the views, the protocol and the adapter.

They are encoded as MessagePack (field names are part of the protocol), on the wire and in the views.
"""

from __future__ import annotations

import enum

import attrs


class Mode(enum.StrEnum):
    """The kind of a shard's next segment."""

    MEMORY = "memory"
    FILE = "file"


class AckLevel(enum.IntEnum):
    """The promise of an acknowledgement.

    ``DEFAULT`` in a request means durable in file mode, and memory in memory mode. A reply always has the reached
    level.
    """

    DEFAULT = 0
    MEMORY = 1
    DURABLE = 2

    def __str__(self) -> str:
        """The name of the level: `durable`."""
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class SegmentKind(enum.StrEnum):
    """The kind of a segment."""

    MEMORY = "memory"
    LOG = "log"
    PARQUET = "parquet"


@attrs.frozen(slots=True)
class Retention:
    """Retention of a shard: whole segments are dropped, oldest first, when a bound is exceeded. 0 means no bound."""

    max_age_s: int = 0
    max_bytes: int = 0
    max_records: int = 0


@attrs.frozen(slots=True)
class ShardConfig:
    """Configuration of a shard.

    Attributes:
        mode: Kind of its next segment.
        retention: Bounds by age, bytes and count.
        segment_bytes: A segment is closed at this size; 0 means the server's default.
        index_keys: Whether it has an index for reads by key.
        index_tags: Whether it has an index for reads by tag.
    """

    mode: Mode = Mode.FILE
    retention: Retention = Retention()
    segment_bytes: int = 0
    index_keys: bool = False
    index_tags: bool = False


@attrs.frozen(slots=True)
class SegmentInfo:
    """One segment of a shard, as in its description.

    Attributes:
        file: The shared file that has its records, below ``sealed/``: ``date=2026-11-22/51e5000000000007.parquet``.
            Empty if it is in no shared file.
        first_row: Row of its first record in that file; the others follow.
    """

    kind: SegmentKind
    base_offset: int
    next_offset: int
    size_bytes: int
    created_us: int
    closed: bool
    file: str = ""
    first_row: int = 0


@attrs.frozen(slots=True)
class ShardInfo:
    """A shard as a client sees it.

    Attributes:
        shard_id: Id of the shard on its node; never assigned again after a deletion.
        start_offset: First offset that was not trimmed.
        next_offset: Offset of the next record; all records below it are committed.
        last_lsn: lsn of the newest batch, 0 if there is none.
        size_bytes: Bytes of all segments.
        restored_offset: The shard's next offset when its node was last restored from a backup; None without a restore.
            From here on, other records may have had these offsets before the restore.
        record_count: Number of records. Offsets that were lost with the memory have none, so it may be less than
            ``next_offset - start_offset``.
    """

    name: str
    shard_id: int
    config: ShardConfig
    created_us: int
    start_offset: int
    next_offset: int
    last_lsn: int
    size_bytes: int
    segments: tuple[SegmentInfo, ...] = ()
    restored_offset: int | None = None
    record_count: int = 0


@attrs.frozen(slots=True)
class Cursor:
    """A named durable offset in a shard.

    Attributes:
        offset: Next offset that its owner will read.
        version: lsn of the commit that set it; in a compare-and-set, 0 means that it does not exist.
    """

    name: str
    offset: int
    version: int


@attrs.frozen(slots=True)
class StateValue:
    """A value of the state store.

    Attributes:
        version: lsn of the put; in a compare-and-set, 0 means that it does not exist.
        expires_at_us: Time in microseconds since the epoch at which the key expires; 0 means never.
    """

    key: bytes
    value: bytes
    version: int
    expires_at_us: int = 0


@attrs.frozen(slots=True)
class Appended:
    """Result of an append.

    Attributes:
        base_offset: Offset of the batch's first record; -1 if a repeated batch was recognised but its offset is not
            known any more (it is nevertheless stored exactly once).
        level: The reached level.
        duplicate: The producer had sent this batch before; it was not stored again.
    """

    base_offset: int
    level: AckLevel
    duplicate: bool = False


@attrs.frozen(slots=True)
class ProducerIdentity:
    """A registered producer. Opening its name again raises the epoch, which fences all clients with an older one."""

    producer_id: int
    epoch: int
