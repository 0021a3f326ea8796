"""Options of a subscription, and the position from which it applies."""

from __future__ import annotations

import attrs

from broker_adapter.mqtt.model.position import BEGINNING, Position


@attrs.frozen(slots=True)
class SubscriptionOptions:
    """Options of one subscription; they are stored with the session.

    Attributes:
        qos: Highest QoS at which messages are sent.
        no_local: Do not send messages that the client published itself.
        retain_as_published: Leave the retain flag as the publisher set it.
        retain_handling: 0 send retained messages, 1 only if the subscription is new, 2 never.
        subscription_id: Subscription Identifier sent with each message; 0 means none.
        since: It applies to messages that were published after this position.
    """

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    subscription_id: int = 0
    since: Position = BEGINNING
