"""What a subscription still owes its client of the messages that were retained when it was made. Pure.

It is a place in the keys of retained messages, not a list of them: it costs the same for one topic and for a million,
is stored with what is under way in the session, and goes on where it was when the client is back.
"""

from __future__ import annotations

import attrs

from broker_adapter.mqtt.model.position import Position


@attrs.define(slots=True, eq=False)
class RetainedScan:
    """See the module.

    Attributes:
        topic_filter: Of the subscription.
        until: What was retained up to here is owed; what was published later comes as live messages.
        qos: Highest QoS.
        subscription_id: Number that goes out with each message; 0 stands for none.
        after: Key of the last retained message that was taken for the client; empty before the first.
    """

    topic_filter: str
    until: Position
    qos: int
    subscription_id: int = 0
    after: bytes = b""
