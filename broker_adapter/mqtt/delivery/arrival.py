"""A message that has arrived for one session, and why it is sent to it the way it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from broker_adapter.mqtt.message import Message
from broker_adapter.mqtt.origin import Origin
from broker_adapter.mqtt.subscription import SubscriptionOptions


@attrs.define(slots=True, eq=False)
class Arrival:
    """What a session is to send.

    Attributes:
        qos: The lower of the message's and the subscription's.
        retain: The retain flag as it is to be sent.
        subscription_ids: Of all subscriptions that matched.
        acknowledge: To be called when the client is done with it; None where nobody waits for that.
        origin: Where it comes from.
    """

    message: Message
    qos: int
    retain: bool = False
    subscription_ids: tuple[int, ...] = ()
    acknowledge: Callable[[], None] | None = None
    origin: Origin = Origin.SUBSCRIPTION


def arrival_of(message: Message, client_id: str, matched: Iterable[SubscriptionOptions]) -> Arrival | None:
    """One arrival for all subscriptions of a session that match a message; None if it is for none of them.

    A subscription counts for messages behind its beginning, and with `no_local` not for the client's own ones.
    """
    qos = -1
    retain = False
    subscription_ids: tuple[int, ...] = ()
    for options in matched:
        # What is not stored has no lsn; it is always new.
        if 0 < message.lsn <= options.since_lsn or (options.no_local and message.publisher == client_id):
            continue
        qos = max(qos, options.qos)
        retain = retain or (options.retain_as_published and message.retain)
        if options.subscription_id:
            subscription_ids = (*subscription_ids, options.subscription_id)
    if qos < 0:
        return None
    return Arrival(message, min(qos, message.qos), retain, subscription_ids)
