"""Delivers the records of tails, and messages of this broker only, to the inboxes of the sessions that match.

Nothing here waits or reads the store: an inbox without room is filled by `catchup` later, or drops a message that is
not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.opening import Opening
from broker_adapter.mqtt.delivery.outgoing_message import Arrival
from broker_adapter.mqtt.delivery.record_group import Run, runs_of
from broker_adapter.mqtt.delivery.subscribers import Subscribers
from broker_adapter.mqtt.delivery.tail import Tail
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import Origin
from broker_adapter.subscription import Delivery
from broker_adapter.topic_mapping import TopicOf
from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram
from shards.format.record import Gap, StoredRecord
from shards.seams.clock import Clock

_MICROSECONDS: Final = 1_000_000


class Latencies:
    """Records one latency for all records that the store delivers at once, that of the oldest one.

    Args:
        clock: The present time. A record has the time of the broker that received it; if that broker's clock is ahead,
            the latency counts as 0.

    Attributes:
        seconds: Histogram of the latencies, in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = Histogram(DURATION_BOUNDS_S)

    def note(self, records: Sequence[StoredRecord | Gap]) -> None:
        """These records were handed out to at least one subscriber."""
        oldest = records[0]
        if not isinstance(oldest, Gap) and oldest.timestamp_us:
            self.seconds.observe(max(0, self._clock.now_us() - oldest.timestamp_us) / _MICROSECONDS)


_log = logging.getLogger("broker_adapter.mqtt.delivery.distributor")


class LiveDelivery:
    """Audience of the tails of stored messages; `UnstoredAudience` is that of messages that are not kept.

    Args:
        max_queued_count: Most records that are kept for a subscription while it is being opened.
        clock: The clock of the latencies.
        wake_waiting: Called when a tail has advanced.
        topic_of: Tells the topics of records.

    Attributes:
        subscribers: The subscriptions of sessions that are connected here.
        replaying: Subscriptions of replays, which get messages that are not kept as well.
        opening: Subscriptions that are being opened.
        delays: Delivery latencies.
        gap_count: Ranges of records that were gone before they could be delivered.
    """

    def __init__(
        self, max_queued_count: int, clock: Clock, wake_waiting: Callable[[], None], topic_of: TopicOf
    ) -> None:
        self._wake_waiting = wake_waiting
        self._topic_of = topic_of
        self.subscribers = Subscribers()
        self.replaying = Subscribers()
        self.opening = Opening(max_queued_count)
        self.delays = Latencies(clock)
        self.gap_count = 0

    def began(self, tail: Tail, start: Position) -> None:
        """A tail begins; see `Audience`."""
        self._wake_waiting()

    def progressed(self, tail: Tail, reached: Position) -> None:
        """A tail has handed out everything up to here; nothing to do, because callers read `Tail.reached_lsn`."""
        self._wake_waiting()

    def delivered(self, _tail: Tail, delivery: Delivery) -> None:
        """Deliver stored records to the sessions whose subscriptions match."""
        if not (delivery.is_decoded or self._may_want(delivery, is_kept=True)):
            return
        touched: dict[Inbox, None] = {}
        is_opening = bool(self.opening)
        for run in runs_of(delivery, topic_of=self._topic_of, on_gap=self.note_gap):
            shard, records = run.shard, run.records
            if is_opening:
                self.opening.note(run)
            for match in self.subscribers.match(run.topic):
                inbox = match.inbox
                watermark = inbox.live_watermark
                if watermark is None or (start := watermark.first_new(shard, records)) == len(records):
                    continue
                arrivals, arrivals_bytes = run.arrivals(match, start)
                if arrivals and inbox.put_live(shard, arrivals, arrivals_bytes):
                    touched[inbox] = None
        self._notify(touched, delivery)

    def _may_want(self, delivery: Delivery, *, is_kept: bool) -> bool:
        """Whether a session may get a record of a delivery now; if not, nothing is decoded."""
        if self.opening:
            return True
        if not len(self.subscribers):
            return False
        if delivery.names_topics:
            return True
        matching = self.subscribers.match(self._topic_of(delivery.shard, ""))
        # A session that is behind reads from the store what is kept.
        return any(not is_kept or match.inbox.live_watermark is not None for match in matching)

    def deliver_unstored(self, delivery: Delivery) -> None:
        """Deliver records that are not kept to the sessions that match and have room now."""
        if not (delivery.is_decoded or len(self.replaying) or self._may_want(delivery, is_kept=False)):
            return
        touched: dict[Inbox, None] = {}
        is_opening = bool(self.opening)
        for run in runs_of(delivery, topic_of=self._topic_of, on_gap=self.note_gap, is_kept=False):
            if is_opening:
                self.opening.note(run)
            self._hand_out_now(self.subscribers, run, touched)
            if len(self.replaying):
                again = Run(run.shard, run.topic, run.records, origin=Origin.REPLAY, is_kept=False)
                self._hand_out_now(self.replaying, again, touched)
        self._notify(touched, delivery)

    def _notify(self, touched: dict[Inbox, None], delivery: Delivery) -> None:
        if touched:
            self.delays.note(delivery.records)
        notify_sessions(touched)

    def _hand_out_now(self, subscribers: Subscribers, run: Run, touched: dict[Inbox, None]) -> None:
        for match in subscribers.match(run.topic):
            put_now(match.inbox, run.arrivals(match)[0], touched)

    def deliver_local(self, message: Message) -> None:
        """Deliver a message that is in no shard to the sessions of this broker that are subscribed to it."""
        touched: dict[Inbox, None] = {}
        for match in self.subscribers.match(message.topic):
            shape = match.shape_for(message, match.since_lsn + 1)
            if shape is not None:
                put_now(match.inbox, (shape.arrival(message),), touched)
        notify_sessions(touched)

    def note_gap(self, gap: Gap) -> None:
        """Count records that were gone before they could be delivered."""
        self.gap_count += 1
        _log.warning(
            "records were gone before they could be delivered: offsets %d to %d", gap.first_offset, gap.next_offset - 1
        )


class UnstoredAudience:
    """Audience of the tail of messages that are not kept."""

    def __init__(self, delivery: LiveDelivery) -> None:
        self._delivery = delivery

    def began(self, tail: Tail, start: Position) -> None:
        """Nothing to do."""

    def progressed(self, tail: Tail, reached: Position) -> None:
        """Nothing to do."""

    def delivered(self, _tail: Tail, delivery: Delivery) -> None:
        """Deliver the records."""
        self._delivery.deliver_unstored(delivery)


def put_now(inbox: Inbox, arrivals: Iterable[Arrival], touched: dict[Inbox, None]) -> None:
    """Put messages that are not kept into an inbox as long as it has room; it is added to those touched."""
    for arrival in arrivals:
        if inbox.put_unless_full(arrival):
            touched[inbox] = None


def notify_sessions(inboxes: Iterable[Inbox]) -> None:
    """Notify sessions that their inboxes have something to take."""
    for inbox in inboxes:
        inbox.ready()
