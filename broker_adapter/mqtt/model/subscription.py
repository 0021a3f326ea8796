"""What a client asked for with one topic filter, and since when."""

from __future__ import annotations

import attrs

from broker_adapter.mqtt.model.position import BEGINNING, Position


@attrs.frozen(slots=True)
class SubscriptionOptions:
    """Options of one subscription; it is kept with the session.

    Attributes:
        qos: Highest QoS at which messages are sent for it.
        no_local: Not to the client that published the message.
        retain_as_published: Leave the retain flag as the publisher set it.
        retain_handling: 0 send retained messages, 1 only if the subscription is new, 2 never.
        subscription_id: Number that goes out with each message; 0 stands for none.
        since: It counts for messages that were published behind this.
    """

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    subscription_id: int = 0
    since: Position = BEGINNING
