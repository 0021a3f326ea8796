"""Records as applications append and read them. The byte layout is in `shards.format.batch`.

They are structs of msgspec, since one object is made for each record that is read: that takes a tenth of the time of a
frozen class of attrs. Python's garbage collector does not look at them, as they cannot be part of a cycle: their values
are bytes, text, numbers and tuples of these. `msgspec.structs.replace` makes changed copies.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message from its producer.

    Attributes:
        value: Payload bytes.
        key: Key for compaction and reads by key; empty means none.
        topic: Topic name; empty means the shard's own name, which takes no bytes.
        timestamp_us: Producer's time in microseconds since the epoch; 0 lets the encoder use its own clock.
        headers: Ordered (name, value) pairs; names may repeat.
        tags: Short words for reads by tag.
        expires_at_us: Time in microseconds since the epoch from which readers no longer see the record; 0 means never.
    """

    value: bytes = b""
    key: bytes = b""
    topic: str = ""
    timestamp_us: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    tags: tuple[str, ...] = ()
    expires_at_us: int = 0


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with the position and time that the server assigned: the fields of `Record` after these three.

    Attributes:
        offset: Number of the record in its shard, from 0.
        lsn: Log sequence number of its batch.
        append_time_us: Server time of the append; never goes back within a group.
    """

    offset: int
    lsn: int
    append_time_us: int
    value: bytes = b""
    key: bytes = b""
    topic: str = ""
    timestamp_us: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    tags: tuple[str, ...] = ()
    expires_at_us: int = 0


class Gap(msgspec.Struct, frozen=True, gc=False):
    """A range of lost offsets: records of a memory segment that were lost with the node.

    Readers get it in place of the lost records, in order, so that a loss is never silent.

    Attributes:
        first_offset: First lost offset.
        next_offset: First offset after the lost range.
    """

    first_offset: int
    next_offset: int
