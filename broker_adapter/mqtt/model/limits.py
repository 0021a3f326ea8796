"""What one client may make the broker hold, what CONNACK tells it of that, and how soon the store is asked again."""

from __future__ import annotations

from typing import Final

import attrs

from shards.back_off import BackOff

STORE_BACK_OFF: Final = BackOff(0.05, 2.0)
"""Between calls to a store that does not answer."""


@attrs.frozen(slots=True, kw_only=True)
class Limits:
    """Limits of connections; the defaults are what brokers run with.

    Attributes:
        max_packet_bytes: Largest packet that is received; a message must fit into one batch of the store too.
        max_connect_bytes: Largest CONNECT: a stranger can make the broker hold this much, and no more.
        receive_maximum: QoS 1 and 2 messages from a client that are not acknowledged yet.
        send_maximum: QoS 1 and 2 messages to a client that are not acknowledged yet, whatever more it allows.
        topic_alias_maximum: Topic aliases in either direction; 0 switches them off.
        max_keep_alive_s: A client that asks for more, or none, of MQTT 5 is told to use this; 0 sets no limit.
        max_session_expiry_s: How long a session is kept; also of MQTT 3.1.1 clients without clean session.
        max_subscriptions: Of one session.
        max_client_id_bytes: Longest client identifier.
        connect_timeout_s: Time for CONNECT to arrive.
        max_output_bytes: Bytes that wait to be sent to a client before no more messages are taken for it.
        stalled_after_s: A client that takes nothing of what waits for so long is disconnected.
        settle_timeout_s: When a client leaves, how long is waited for what it published before it left.
    """

    max_packet_bytes: int = 4 << 20
    max_connect_bytes: int = 512 * 1024
    receive_maximum: int = 1024
    send_maximum: int = 1024
    topic_alias_maximum: int = 64
    max_keep_alive_s: int = 0
    max_session_expiry_s: int = 7 * 86_400
    max_subscriptions: int = 10_000
    max_client_id_bytes: int = 1024
    connect_timeout_s: float = 10.0
    max_output_bytes: int = 256 * 1024
    stalled_after_s: float = 60.0
    settle_timeout_s: float = 10.0
