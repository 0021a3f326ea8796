"""The stored forms of queues in the state store; see `broker_adapter.state_forms`. Pure."""

from __future__ import annotations

import msgspec


class Definition(msgspec.Struct, array_like=True, frozen=True):
    """Definition of a queue, and its operator's requests.

    Attributes:
        queue_id: Permanent id, also used by sinks.
        shard_id: Id of the shard that it was created with; if the shard has another one, it was deleted meanwhile.
        settings: `QueueSettings` by name, as the last writer or driver had them.
        is_paused: No records are sent to the sink.
        wake_count: Rises when the operator requests that the sink is tried at once.
        purged_count: Records that operators deleted before there was a `Progress`.
    """

    queue_id: str
    shard_id: int
    settings: dict[str, str | int]
    is_paused: bool = False
    wake_count: int = 0
    purged_count: int = 0


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """Lease of a queue.

    Attributes:
        holder: Name of the holder, for output; empty when it was given back.
        claim: Random, so that a holder recognizes its own lease.
        epoch: Rises with each holder.
        renewal_count: Rises with each renewal.
    """

    holder: str
    claim: str
    epoch: int
    renewal_count: int


class Request(msgspec.Struct, array_like=True, frozen=True):
    """Request that the present driver gives up the lease.

    Attributes:
        asker: Name of the requesting process, for output.
        claim: Random, so that a process recognizes its own request.
        renewal_count: Rises with each renewal.
    """

    asker: str
    claim: str
    renewal_count: int


class Counts(msgspec.Struct, array_like=True, frozen=True):
    """Outcomes of the records that left the queue, since it was created.

    Attributes:
        confirmed: Accepted by the sink.
        dead_lettered: Refused by the sink, and kept as dead letters.
        dropped_oldest: Dropped to make room for newer ones.
        expired: Waited too long.
        lost: Were in memory when the store's node went down.
        purged: Deleted by operators.
    """

    confirmed: int = 0
    dead_lettered: int = 0
    dropped_oldest: int = 0
    expired: int = 0
    lost: int = 0
    purged: int = 0


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """The confirmed offset of a queue. It is changed by compare-and-set, in one commit with the changes it reports.

    Attributes:
        shard_id: Id of the queue's shard.
        offset: Everything below it is confirmed by the sink, set aside or dropped.
        counts: Outcomes of the records below ``offset``.
        set_aside: Ranges at or above ``offset`` whose records are dead letters already.
        epoch: Epoch of the queue's driver.
    """

    shard_id: int
    offset: int = 0
    counts: Counts = Counts()
    set_aside: tuple[tuple[int, int], ...] = ()
    epoch: int = 0


class KnownEnd(msgspec.Struct, array_like=True, frozen=True):
    """What one writer knows about which offsets have records. Kept while records may be in memory only.

    A store that dies skips the offsets that it had reserved for records in memory, used or not; readers get a gap. What
    writers know tells how many records were lost in it.

    Attributes:
        shard_id: Id of the queue's shard.
        end_offset: Each offset below it has a record, or is in ``unused``, or in a gap from before this writer.
        unused: Ranges of offsets that no record had.
    """

    shard_id: int
    end_offset: int
    unused: tuple[tuple[int, int], ...] = ()


class Status(msgspec.Struct, array_like=True, frozen=True):
    """A driver's report about itself and its sink.

    Attributes:
        holder: Name of the driver.
        state: A `broker_adapter.bridge.breaker.BreakerState`, "paused" or "starting"; for a process that drains the
            queue once "draining", then "idle".
        since_us: When that state began, in microseconds since 1970.
        reason: Why the sink is out; empty while it is not.
        next_attempt_us: When the sink is tried again, in microseconds since 1970; 0 if that is not planned.
        counts: Outcomes up to ``counted_offset``, as the driver saw them then; `Progress` has the valid ones.
        counted_offset: Offset of ``counts``.
        in_rate, out_rate: Records per second over the last seconds.
        updated_us: When this was written.
    """

    holder: str
    state: str
    since_us: int
    reason: str
    next_attempt_us: int
    counts: Counts
    counted_offset: int
    in_rate: float
    out_rate: float
    updated_us: int


class WriterCounts(msgspec.Struct, array_like=True, frozen=True):
    """Records that a writer did not put into the queue because it was full.

    Attributes:
        rejected: Refused with an error to their producers.
        dropped_newest: Dropped; their producers got a normal acknowledgement.
    """

    rejected: int = 0
    dropped_newest: int = 0


class LettersDone(msgspec.Struct, array_like=True, frozen=True):
    """Which dead letters were put back into the queue or purged, although they may still be stored.

    Attributes:
        shard_id: Id of the shard of dead letters.
        next_offset: All below it are finished.
    """

    shard_id: int
    next_offset: int
