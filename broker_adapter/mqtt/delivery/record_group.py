"""Runs of records that are matched, decoded and shaped together, and the arrivals of one session. Pure.

Usually a topic has a shard of its own: then a delivery is one run, its topic is matched once, each record is decoded at
most once, and sessions with equal subscription options share the arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from broker_adapter.mqtt.delivery.outgoing_message import Arrival, Shape, shape_of, total_bytes
from broker_adapter.mqtt.model.message import Message, messages_of
from broker_adapter.mqtt.model.subscription import Origin, SubscriptionOptions
from broker_adapter.subscription import Delivery
from broker_adapter.topic_mapping import TopicOf
from shards.format.record import Gap, StoredRecord

if TYPE_CHECKING:
    from broker_adapter.mqtt.delivery.inbox import Inbox


class Match:
    """The subscriptions of one session that match a topic.

    Attributes:
        inbox: The session's.
        shape: How a message is sent if all of them apply.
        since_lsn: All of them apply to records with a higher lsn.
        has_no_local: At least one of them excludes messages that the client published itself.
    """

    __slots__ = ("has_no_local", "inbox", "options", "shape", "since_lsn")

    def __init__(self, inbox: Inbox, options: Sequence[SubscriptionOptions]) -> None:
        self.inbox = inbox
        self.options = options
        self.shape = shape_of(options)
        self.since_lsn = max(one.since for one in options).lsn
        self.has_no_local = any(one.no_local for one in options)

    def shape_for(self, message: Message, lsn: int) -> Shape | None:
        """How a message is sent for the subscriptions that apply; None if none applies."""
        client_id = self.inbox.client_id
        counting = [
            one
            for one in self.options
            if not one.since.covers_record(lsn) and not (one.no_local and message.publisher == client_id)
        ]
        return shape_of(counting) if counting else None


Arrivals = tuple[Sequence[Arrival], int]
"""Arrivals, and the bytes that they count in an inbox."""


class Run:
    """Records of one shard and one topic, in order.

    Args:
        shard: Name of the shard.
        topic: Their topic.
        records: At least one.
        origin: Why they are delivered.
        is_kept: Whether they can be read again. Messages of records that are not kept have no lsn.
    """

    __slots__ = ("_messages", "_shaped", "is_kept", "origin", "records", "shard", "topic")

    def __init__(
        self,
        shard: str,
        topic: str,
        records: Sequence[StoredRecord],
        *,
        origin: Origin = Origin.SUBSCRIPTION,
        is_kept: bool = True,
    ) -> None:
        self.shard = shard
        self.topic = topic
        self.records = records
        self.origin = origin
        self.is_kept = is_kept
        self._messages: list[Message] | None = None
        self._shaped: dict[Shape, Arrivals] = {}

    @property
    def messages(self) -> list[Message]:
        """The records, decoded."""
        if self._messages is None:
            self._messages = messages_of(self.shard, self.records, self.topic)
            if not self.is_kept:
                for message in self._messages:
                    message.lsn = 0
        return self._messages

    def arrivals(self, match: Match, start: int = 0) -> Arrivals:
        """The arrivals of the records from an index on, for one session."""
        if match.has_no_local or self.records[start].lsn <= match.since_lsn:
            return self._single(match, start)
        shaped = self._shaped.get(match.shape)
        if shaped is None:
            shape, origin = match.shape, self.origin
            shaped = self._shaped[shape] = sized(shape.arrivals(self.messages, origin))
        return shaped if not start else sized(shaped[0][start:])

    def _single(self, match: Match, start: int) -> Arrivals:
        arrivals = []
        for record, message in zip(self.records[start:], self.messages[start:], strict=True):
            shape = match.shape_for(message, record.lsn)
            if shape is not None:
                arrivals.append(shape.arrival(message, self.origin))
        return sized(arrivals)


def sized(arrivals: Sequence[Arrival]) -> Arrivals:
    """Arrivals with their bytes."""
    return arrivals, total_bytes(arrivals)


def runs_of(
    delivery: Delivery,
    *,
    topic_of: TopicOf,
    on_gap: Callable[[Gap], None],
    origin: Origin = Origin.SUBSCRIPTION,
    is_kept: bool = True,
) -> Iterator[Run]:
    """The runs of a delivery, in order.

    Args:
        delivery: The records; they are decoded.
        topic_of: Tells whether the topic that a record names counts.
        on_gap: Called for gaps between them.
        origin: Why they are delivered.
        is_kept: Whether they can be read again.
    """
    shard = delivery.shard
    if not delivery.names_topics:
        records = cast("list[StoredRecord]", delivery.records)
        yield Run(shard, topic_of(shard, ""), records, origin=origin, is_kept=is_kept)
        return
    run: list[StoredRecord] = []
    named = ""
    for record in delivery.records:
        if isinstance(record, Gap):
            on_gap(record)
            continue
        if run and record.topic != named:
            yield Run(shard, topic_of(shard, named), run, origin=origin, is_kept=is_kept)
            run = []
        named = record.topic
        run.append(record)
    if run:
        yield Run(shard, topic_of(shard, named), run, origin=origin, is_kept=is_kept)
