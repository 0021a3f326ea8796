"""Conversion of what is under way in a session (its progress) between memory and its stored form. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import zip_longest

from broker_adapter.mqtt.model.position import Position, ReachedLsn, RetainedScan
from broker_adapter.mqtt.model.subscription import Origin
from broker_adapter.mqtt.session.acked_ranges import AckedRanges
from broker_adapter.mqtt.session.outbound_window import MAX_SEEN_RANGES, InFlight, OutboundWindow
from broker_adapter.mqtt.session.stored import ProgressRecord, StoredInFlight, StoredRange, StoredRetainedScan


class _Names:
    """Numbers for shard names, in the order in which they are first used."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


def progress_of(
    window: OutboundWindow,
    inbound: Mapping[int, int],
    *,
    claim: int,
    write_number: int,
    claiming: Collection[int] = (),
    retained: Iterable[RetainedScan] = (),
) -> ProgressRecord:
    """The stored form of the present progress, without messages that do not outlive the connection.

    Args:
        inbound: `Session.inbound`.
        claiming: Packet identifiers of the messages that are claimed in the same commit.
        retained: Retained messages that are still to be sent.
    """
    names = _Names()
    return ProgressRecord(
        claim=claim,
        write_number=write_number,
        position_lsn=window.position_lsn,
        last_packet_id=window.last_packet_id,
        publishes=tuple(
            _stored(entry, names)
            for entry in window.publishes()
            if entry.is_kept and (entry.is_claimed or entry.packet_id in claiming)
        ),
        releases=tuple(_stored(entry, names) for entry in window.releases() if entry.is_kept),
        done=_stored_ranges(window.done, names),
        seen=_stored_ranges(window.seen, names),
        inbound=tuple(inbound),
        inbound_digests=tuple(inbound.values()),
        retained=tuple(
            StoredRetainedScan(one.topic_filter, one.until.lsn, one.qos, one.subscription_id, one.after)
            for one in retained
        ),
        # Last, after all names were numbered.
        shards=tuple(names.numbers),
    )


def retained_of(progress: ProgressRecord) -> list[RetainedScan]:
    """The stored scans of retained messages that are still to be sent."""
    return [
        RetainedScan(one.topic_filter, Position(one.until_lsn), one.qos, one.subscription_id, one.after)
        for one in progress.retained
    ]


def inbound_of(progress: ProgressRecord) -> dict[int, int]:
    """`Session.inbound`, as it was stored."""
    return dict(zip_longest(progress.inbound, progress.inbound_digests[: len(progress.inbound)], fillvalue=0))


def window_of(progress: ProgressRecord) -> OutboundWindow:
    """The stored window; all messages in it wait to be sent again."""
    shards = progress.shards
    return OutboundWindow(
        (_in_flight(entry, shards, released=False) for entry in progress.publishes),
        (_in_flight(entry, shards, released=True) for entry in progress.releases),
        AckedRanges(_ranges(progress.done, shards)),
        AckedRanges(_ranges(progress.seen, shards), max_ranges=MAX_SEEN_RANGES),
        position_lsn=ReachedLsn(progress.position_lsn),
        last_packet_id=progress.last_packet_id,
    )


def _stored_ranges(ranges: AckedRanges, names: _Names) -> tuple[StoredRange, ...]:
    return tuple(
        (names.number(shard), first_offset, next_offset, last_lsn)
        for shard, first_offset, next_offset, last_lsn in ranges.items()
    )


def _ranges(stored: Iterable[StoredRange], shards: tuple[str, ...]) -> Iterator[tuple[str, int, int, int]]:
    for number, first_offset, next_offset, last_lsn in stored:
        yield shards[number], first_offset, next_offset, last_lsn


def _stored(entry: InFlight, names: _Names) -> StoredInFlight:
    return StoredInFlight(
        entry.packet_id,
        entry.qos,
        names.number(entry.shard),
        entry.offset,
        entry.lsn,
        entry.origin,
        entry.retain,
        entry.subscription_ids,
    )


def _in_flight(stored: StoredInFlight, shards: tuple[str, ...], *, released: bool) -> InFlight:
    return InFlight(
        stored.packet_id,
        stored.qos,
        shards[stored.shard],
        stored.offset,
        stored.lsn,
        Origin(stored.origin),
        stored.retain,
        stored.subscription_ids,
        released,
    )
