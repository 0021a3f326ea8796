"""Plain values that describe shards, cursors and state: shared by the views, the protocol and the adapter.

They travel as MessagePack (field names are part of protocol version 1) and are stored the same way in the views.
"""

from __future__ import annotations

import enum

import attrs


class Mode(enum.StrEnum):
    """Where the next segment of a shard lies."""

    MEMORY = "memory"
    FILE = "file"


class AckLevel(enum.IntEnum):
    """What an acknowledgement promises.

    ``DEFAULT`` in a request means: durable in file mode, memory in memory mode. A reply always names the level reached.
    """

    DEFAULT = 0
    MEMORY = 1
    DURABLE = 2

    def __str__(self) -> str:
        """The name, for people: `durable`."""
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class SegmentKind(enum.StrEnum):
    """What a segment is made of."""

    MEMORY = "memory"
    LOG = "log"
    PARQUET = "parquet"


@attrs.frozen(slots=True)
class Retention:
    """What a shard keeps; whole segments go, oldest first, when any bound is passed. 0 means no bound."""

    max_age_s: int = 0
    max_bytes: int = 0
    max_records: int = 0


@attrs.frozen(slots=True)
class ShardConfig:
    """How a shard is kept.

    Attributes:
        mode: Where its next segment lies.
        retention: Bounds by age, bytes and count.
        segment_bytes: A segment is closed at this size; 0 takes the server's default.
        index_keys: Keep an index for reads by key.
        index_tags: Keep an index for reads by tag.
    """

    mode: Mode = Mode.FILE
    retention: Retention = Retention()
    segment_bytes: int = 0
    index_keys: bool = False
    index_tags: bool = False


@attrs.frozen(slots=True)
class SegmentInfo:
    """One segment of a shard, as `describe` shows it."""

    kind: SegmentKind
    base_offset: int
    next_offset: int
    size_bytes: int
    created_us: int
    sealed: bool


@attrs.frozen(slots=True)
class ShardInfo:
    """A shard as a client sees it.

    Attributes:
        shard_id: Number of the shard on its node; never used again after a delete.
        start_offset: First offset that is still there (lower ones were trimmed).
        next_offset: Offset the next record will get; all offsets below it are committed.
        last_lsn: lsn of the newest batch, 0 if there is none.
        size_bytes: Bytes of all segments.
        restored_offset: Where the shard ended when its node was restored from a backup the last time; None if that
            never happened. From here on other records may have had these offsets before the restore.
        record_count: Records that are there. Offsets that were lost with the memory have none, so it may be less than
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
        offset: Next offset its owner wants to read.
        version: lsn of the commit that set it; 0 stands for "not there" in a compare-and-set.
    """

    name: str
    offset: int
    version: int


@attrs.frozen(slots=True)
class StateValue:
    """A value of the state store.

    Attributes:
        version: lsn of the put; 0 stands for "not there" in a compare-and-set.
        expires_at_us: Time from which the key is gone; 0 means never.
    """

    key: bytes
    value: bytes
    version: int
    expires_at_us: int = 0


@attrs.frozen(slots=True)
class Appended:
    """What the store says of an append.

    Attributes:
        base_offset: Offset of the batch's first record; -1 when a repeated batch was recognised but its offset is no
            longer remembered (it is stored exactly once all the same).
        level: What is promised now.
        duplicate: The producer had sent this batch before; it was not stored again.
    """

    base_offset: int
    level: AckLevel
    duplicate: bool = False


@attrs.frozen(slots=True)
class ProducerIdentity:
    """A registered producer. Opening its name again raises the epoch, which fences every older holder."""

    producer_id: int
    epoch: int
