"""What an application puts into a shard and gets back from it. No bytes layout here: see `shards.format.batch`."""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True)
class Record:
    """One message, as its producer gives it.

    Attributes:
        value: Payload bytes.
        key: Compaction and lookup key; empty means none.
        topic: Topic name; empty means "the shard's own name", which costs no bytes in a one-topic shard.
        timestamp_us: Producer's time in microseconds since the epoch; 0 lets the encoder fill in its own clock.
        headers: Ordered (name, value) pairs; names may repeat.
        tags: Short words that a read by tag finds.
        expires_at_us: Time from which readers no longer see the record; 0 means never.
    """

    value: bytes = b""
    key: bytes = b""
    topic: str = ""
    timestamp_us: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    tags: tuple[str, ...] = ()
    expires_at_us: int = 0


@attrs.frozen(slots=True)
class StoredRecord:
    """A record with the place and time that the server gave it: the fields of `Record` after these three.

    Attributes:
        offset: Number of the record in its shard, from 0.
        lsn: Log sequence number of the batch that carried it.
        append_time_us: Server time of the append; never goes backwards within a group.
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


@attrs.frozen(slots=True)
class Gap:
    """Offsets that were given out and are gone: records of a memory segment lost with the node.

    Readers meet it in place of the lost records, in order, so that a loss is never silent.

    Attributes:
        first_offset: First lost offset.
        next_offset: First offset after the lost range.
    """

    first_offset: int
    next_offset: int
