"""The forms in which queues lie in the state store; see `broker_adapter.state_forms`. Pure."""

from __future__ import annotations

import msgspec


class Definition(msgspec.Struct, array_like=True, frozen=True):
    """What a queue is, and what its operator wants of it.

    Attributes:
        queue_id: Names it for ever, also towards sinks.
        shard_id: Of the shard that it was made with; another one means that somebody deleted it.
        settings: `QueueSettings` by name, as the last writer or driver had them.
        is_paused: Nothing is brought to the sink.
        wake_count: Rises when the operator wants the sink to be tried at once.
        purged_count: Records that operators threw away before there was a `Progress`.
    """

    queue_id: str
    shard_id: int
    settings: dict[str, str | int]
    is_paused: bool = False
    wake_count: int = 0
    purged_count: int = 0


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """Who drives the queue.

    Attributes:
        holder: Its name, for people; empty when it was given back.
        claim: Random, so that a holder knows its own lease.
        epoch: Rises with each holder.
        renewal_count: Changes with each sign of life.
    """

    holder: str
    claim: str
    epoch: int
    renewal_count: int


class Request(msgspec.Struct, array_like=True, frozen=True):
    """Who asks the present driver to stand aside.

    Attributes:
        asker: Its name, for people.
        claim: Random, so that an asker knows its own request.
        renewal_count: Changes with each sign of life.
    """

    asker: str
    claim: str
    renewal_count: int


class Counts(msgspec.Struct, array_like=True, frozen=True):
    """What became of the records that left the queue, since it was made.

    Attributes:
        confirmed: The sink has them.
        dead_lettered: Refused by the sink, and kept as dead letters.
        dropped_oldest: Given up for newer ones.
        expired: Waited too long.
        lost: Were in memory when the store's node went down.
        purged: Thrown away by operators.
    """

    confirmed: int = 0
    dead_lettered: int = 0
    dropped_oldest: int = 0
    expired: int = 0
    lost: int = 0
    purged: int = 0


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """How far a queue is done with. It is changed by compare-and-set, in one step with what it tells of.

    Attributes:
        shard_id: Of the queue's shard.
        offset: Everything below is confirmed by the sink, set aside or given up.
        counts: What became of the records below ``offset``.
        set_aside: Ranges at or above ``offset`` whose records are dead letters already.
        epoch: Of the driver that has the queue.
    """

    shard_id: int
    offset: int = 0
    counts: Counts = Counts()
    set_aside: tuple[tuple[int, int], ...] = ()
    epoch: int = 0


class KnownEnd(msgspec.Struct, array_like=True, frozen=True):
    """What one writer knows of which offsets were given to records. Kept while records may lie in memory alone.

    A store that dies gives up the offsets that it had reserved for records in memory, used or not; readers see a gap.
    What a writer knows tells how many records were lost in it.

    Attributes:
        shard_id: Of the queue's shard.
        end_offset: Each offset below was given to a record, or lies in ``unused``, or in a gap from before this writer.
        unused: Ranges of offsets that no record had.
    """

    shard_id: int
    end_offset: int
    unused: tuple[tuple[int, int], ...] = ()


class Status(msgspec.Struct, array_like=True, frozen=True):
    """What a driver says of itself and of the sink.

    Attributes:
        holder: The driver.
        state: What it is doing: see `broker_adapter.bridge.breaker.BreakerState`, "paused" or "starting"; of one that
            drains what waits and leaves "draining", then "idle".
        since_us: When that began.
        reason: Why the sink is out; empty while it is not.
        next_attempt_us: When the sink is tried again, 0 if that is not planned.
        counts: Up to ``counted_offset``, as the driver saw them then; `Progress` is what counts.
        counted_offset: See there.
        in_rate, out_rate: Records a second over the last seconds.
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
    """What a writer did not put into the queue because that was full.

    Attributes:
        rejected: Their producers were told.
        dropped_newest: Their producers were told that all is well.
    """

    rejected: int = 0
    dropped_newest: int = 0


class LettersDone(msgspec.Struct, array_like=True, frozen=True):
    """Which dead letters were put back into the queue or purged, although they may be there still.

    Attributes:
        shard_id: Of the shard of dead letters.
        next_offset: All below it are done with.
    """

    shard_id: int
    next_offset: int
