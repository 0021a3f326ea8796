"""A message for a session in the form in which it is sent, and how several subscriptions become one arrival. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

import attrs
import msgspec

from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.subscription import Origin, SubscriptionOptions

ARRIVAL_BYTES: Final = 256
"""Bytes that an arrival counts in addition to its payload."""


class Arrival(msgspec.Struct, eq=False):
    """A message to send to a session. Several sessions may share the object: do not change it.

    Attributes:
        qos: The lower of the message's and the subscription's.
        retain: The retain flag of the packet.
        subscription_ids: Of all subscriptions that matched.
        acknowledge: To be called when the message is done for the group (at QoS 0 when it was sent, at QoS 1 when it
            was acknowledged, at QoS 2 when it is claimed), so that no other member gets it; None outside of groups.
        origin: Why it is sent.
        store_group: The group of the store that it was delivered to; empty outside of groups.
    """

    message: Message
    qos: int
    retain: bool = False
    subscription_ids: tuple[int, ...] = ()
    acknowledge: Callable[[], None] | None = None
    origin: Origin = Origin.SUBSCRIPTION
    store_group: str = ""


@attrs.frozen(slots=True)
class Shape:
    """How a message is sent for several subscriptions together: highest QoS, all identifiers."""

    qos: int
    retain_as_published: bool
    subscription_ids: tuple[int, ...]

    def arrival(self, message: Message, origin: Origin = Origin.SUBSCRIPTION) -> Arrival:
        """The arrival of a message."""
        [arrival] = self.arrivals((message,), origin)
        return arrival

    def arrivals(self, messages: Iterable[Message], origin: Origin = Origin.SUBSCRIPTION) -> list[Arrival]:
        """The arrivals of messages."""
        qos, keeps_retain, ids = self.qos, self.retain_as_published, self.subscription_ids
        return [
            Arrival(
                message,
                min(message.qos, qos),
                message.retain and keeps_retain,
                ids,
                None,
                origin,
            )
            for message in messages
        ]


def shape_of(matched: Iterable[SubscriptionOptions]) -> Shape:
    """The shape of messages that match all these subscriptions of a session."""
    qos = 0
    retain_as_published = False
    subscription_ids: tuple[int, ...] = ()
    for options in matched:
        qos = max(qos, options.qos)
        retain_as_published = retain_as_published or options.retain_as_published
        if options.subscription_id and options.subscription_id not in subscription_ids:
            subscription_ids = (*subscription_ids, options.subscription_id)
    return Shape(qos, retain_as_published, subscription_ids)


def size_bytes(arrival: Arrival) -> int:
    """Bytes that an arrival counts in an inbox."""
    return len(arrival.message.payload) + ARRIVAL_BYTES


def total_bytes(arrivals: Sequence[Arrival]) -> int:
    """Bytes that arrivals count in an inbox together."""
    return sum([len(arrival.message.payload) for arrival in arrivals]) + ARRIVAL_BYTES * len(arrivals)


def alike_from(arrivals: Sequence[Arrival], at: int) -> list[Message]:
    """The messages from an index on that can be sent together.

    They are of one shard and in order, are sent at QoS 1 for subscriptions outside of groups, with the same retain flag
    and the same subscription identifiers, and never expire.
    """
    first = arrivals[at]
    shard, offset, retain, ids = first.message.shard, -1, first.retain, first.subscription_ids
    messages: list[Message] = []
    for arrival in islice(arrivals, at, None):
        message = arrival.message
        if (
            arrival.qos != 1
            or arrival.acknowledge is not None
            or arrival.origin is not Origin.SUBSCRIPTION
            or arrival.retain is not retain
            or arrival.subscription_ids != ids
            or message.expires_at_us
            or message.offset <= offset
            or message.shard != shard
        ):
            break
        offset = message.offset
        messages.append(message)
    return messages
