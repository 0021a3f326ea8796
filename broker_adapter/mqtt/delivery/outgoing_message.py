"""A message that has arrived for a session, as it is to be sent, and how many subscriptions make one arrival. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import attrs

from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.origin import Origin
from broker_adapter.mqtt.model.subscription import SubscriptionOptions

ARRIVAL_BYTES: Final = 256
"""What an arrival counts beside its payload."""


@attrs.define(slots=True, eq=False)
class Arrival:
    """What a session is to send. Sessions that get the same share it: do not change it.

    Attributes:
        qos: The lower of the message's and the subscription's.
        retain: The retain flag as it is to be sent.
        subscription_ids: Of all subscriptions that matched.
        acknowledge: To be called when the client has it for good (at QoS 0 when it was sent, at QoS 2 when it is
            claimed), so that no other member of the group gets it; None where nobody waits for that.
        origin: Where it comes from.
        store_group: The group of the store whose share it is; empty if it is none.
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
    """What several subscriptions together make of any message: highest QoS, all identifiers."""

    qos: int
    retain_as_published: bool
    subscription_ids: tuple[int, ...]

    def arrival(self, message: Message, origin: Origin = Origin.SUBSCRIPTION) -> Arrival:
        """A message in this shape."""
        retain = message.retain and self.retain_as_published
        return Arrival(message, min(self.qos, message.qos), retain, self.subscription_ids, None, origin)


def shape_of(matched: Iterable[SubscriptionOptions]) -> Shape:
    """The shape that subscriptions of one session give to a message that matches them all."""
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
    """What an arrival counts in an inbox."""
    return len(arrival.message.payload) + ARRIVAL_BYTES
