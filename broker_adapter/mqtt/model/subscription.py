"""Options of a subscription, the position from which it applies, and why a message goes to a client."""

from __future__ import annotations

import enum

import attrs

from broker_adapter.mqtt.model.position import BEGINNING, Position


class Origin(enum.IntEnum):
    """Why a message goes to a client; it decides what happens to the message when the connection ends.

    The numbers are stored.
    """

    SUBSCRIPTION = 0
    """It matched a subscription of the session: sent again if it was under way, and never twice at QoS 2."""

    RETAINED = 1
    """It was retained when the client subscribed: sent again, if it is still retained."""

    GROUP = 2
    """Delivered to a member of a shared subscription: at QoS 1 another member gets it, at QoS 2 only this one."""

    REPLAY = 3
    """It was requested by a replay; nothing of a replay is stored in the session."""


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
