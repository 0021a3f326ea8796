"""Encoding of packets: calls the writer of each packet type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker_adapter.mqtt_codec.acknowledgement_bodies import write_acknowledgement
from broker_adapter.mqtt_codec.connection_bodies import write_auth, write_connack, write_connect, write_disconnect
from broker_adapter.mqtt_codec.fixed_header import framed
from broker_adapter.mqtt_codec.packet_types import PacketType, first_byte
from broker_adapter.mqtt_codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Version,
)
from broker_adapter.mqtt_codec.publish_bodies import write_publish
from broker_adapter.mqtt_codec.subscription_bodies import (
    write_suback,
    write_subscribe,
    write_unsuback,
    write_unsubscribe,
)


def encode(packet: Packet, version: Version) -> bytes:
    """Encode a packet. Properties, and other parts that MQTT 3.1.1 does not have, are left out for that version.

    Raises:
        ValueError: A value does not fit into its field, a property is not allowed in the packet, or MQTT 3.1.1 cannot
            express a failure in PUBACK, PUBREC or DISCONNECT.
    """
    return _WRITERS[packet.__class__](packet, version)


def _without_body(packet_type: PacketType) -> Callable[[Any, Version], bytes]:
    written = framed(first_byte(packet_type), b"")
    return lambda _packet, _version: written


_WRITERS: Final[dict[type, Callable[[Any, Version], bytes]]] = {
    Connect: write_connect,
    Connack: write_connack,
    Publish: write_publish,
    Puback: write_acknowledgement,
    Pubrec: write_acknowledgement,
    Pubrel: write_acknowledgement,
    Pubcomp: write_acknowledgement,
    Subscribe: write_subscribe,
    Suback: write_suback,
    Unsubscribe: write_unsubscribe,
    Unsuback: write_unsuback,
    Pingreq: _without_body(PacketType.PINGREQ),
    Pingresp: _without_body(PacketType.PINGRESP),
    Disconnect: write_disconnect,
    Auth: write_auth,
}
