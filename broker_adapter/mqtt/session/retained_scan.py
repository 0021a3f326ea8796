"""Retained messages that a new subscription has still to send to its client. Pure.

It is a position in the keys of retained messages, not a list of messages: its size is the same for one topic and for a
million. It is stored with the session's progress, and continues there when the client reconnects.
"""

from __future__ import annotations

import attrs

from broker_adapter.mqtt.model.position import Position


@attrs.define(slots=True, eq=False)
class RetainedScan:
    """Position in the retained messages of one subscription; see the module.

    Attributes:
        topic_filter: Of the subscription.
        until: Messages retained up to this position are sent; later ones come as live messages.
        qos: Highest QoS with which they are sent.
        subscription_id: Subscription Identifier sent with each message; 0 means none.
        after: Key of the last retained message that was taken; empty before the first.
    """

    topic_filter: str
    until: Position
    qos: int
    subscription_id: int = 0
    after: bytes = b""
