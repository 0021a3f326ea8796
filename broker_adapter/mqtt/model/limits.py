"""Limits of what one client may occupy in the broker, some of which CONNACK announces, and of retries."""

from __future__ import annotations

from typing import Final

import attrs

from shards.back_off import BackOff

STORE_BACK_OFF: Final = BackOff(0.05, 2.0)
"""Back-off between calls to a store that does not answer."""


@attrs.frozen(slots=True, kw_only=True)
class Limits:
    """Limits of connections; the defaults are those that brokers use.

    Attributes:
        max_packet_bytes: Largest packet that is received; a message must fit into one batch of the store too.
        max_connect_bytes: Largest CONNECT: the most memory that one client without authentication can occupy.
        max_unaccepted_bytes: What all clients together sent that are not accepted yet, beyond the first 4 KiB of each.
        receive_maximum: Most unacknowledged QoS 1 and 2 messages from a client.
        send_maximum: Most unacknowledged QoS 1 and 2 messages to a client, even if the client allows more.
        topic_alias_maximum: Topic aliases in either direction; 0 switches them off.
        max_keep_alive_s: Server Keep Alive for a client of MQTT 5 that asks for a longer one, or none; 0: no limit.
        max_session_expiry_s: Longest session expiry interval; also that of MQTT 3.1.1 clients without clean session.
        max_subscriptions: Of one session.
        max_delay_s: Longest delay of a delayed message.
        max_client_id_bytes: Longest client identifier.
        connect_timeout_s: Time for CONNECT to arrive.
        max_output_bytes: When this many bytes wait to be sent to a client, no more messages are taken for it.
        stalled_after_s: A client that accepts no bytes for this long, although some wait, is disconnected.
        settle_timeout_s: How long the broker waits for the outcome of earlier publishes when a client disconnects.
    """

    max_packet_bytes: int = 4 << 20
    max_connect_bytes: int = 512 * 1024
    max_unaccepted_bytes: int = 64 << 20
    receive_maximum: int = 1024
    send_maximum: int = 1024
    topic_alias_maximum: int = 64
    max_keep_alive_s: int = 0
    max_session_expiry_s: int = 7 * 86_400
    max_subscriptions: int = 10_000
    max_delay_s: int = 30 * 86_400
    max_client_id_bytes: int = 1024
    connect_timeout_s: float = 10.0
    max_output_bytes: int = 256 * 1024
    stalled_after_s: float = 60.0
    settle_timeout_s: float = 10.0
