"""Packets into bytes. What a packet says is its maker's business: values that fit the fields are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from broker_adapter.mqtt.codec.fields import binary, properties, text, variable
from broker_adapter.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
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
)
from broker_adapter.mqtt.codec.properties import EMPTY, Properties
from broker_adapter.mqtt.codec.reason_codes import ReasonCode
from broker_adapter.mqtt.codec.reasons import RETURN_CODES
from broker_adapter.mqtt.codec.version import Version

_PINGREQ: Final = bytes((PacketType.PINGREQ << 4, 0))
_PINGRESP: Final = bytes((PacketType.PINGRESP << 4, 0))
_PUBACK_HEAD: Final = bytes((PacketType.PUBACK << 4, 2))


def encode(packet: Packet, version: Version) -> bytes:
    """The bytes of a packet.

    Raises:
        ValueError: A value does not fit into its field.
    """
    return _ENCODERS[type(packet)](packet, version)


def encode_pubacks(packet_ids: Iterable[int]) -> bytes:
    """Many PUBACKs that say success, the same bytes in both versions."""
    return b"".join([_PUBACK_HEAD + packet_id.to_bytes(2, "big") for packet_id in packet_ids])


@attrs.frozen(slots=True)
class PublishTemplate:
    """A PUBLISH that is encoded once and sent to many, each with its own packet identifier.

    Attributes:
        head: Up to the packet identifier.
        tail: What follows it.
        qos: At QoS 0 there is no packet identifier.
    """

    head: bytes
    tail: bytes
    qos: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole packet."""
        return len(self.head) + len(self.tail) + (2 if self.qos else 0)

    def with_packet_id(self, packet_id: int, *, dup: bool = False) -> bytes:
        """The packet for one receiver."""
        head = bytes((self.head[0] | 8,)) + self.head[1:] if dup else self.head
        if not self.qos:
            return head + self.tail
        return b"".join((head, packet_id.to_bytes(2, "big"), self.tail))


def publish_template(
    topic: str, payload: bytes, qos: int, version: Version, *, retain: bool = False, values: Properties = EMPTY
) -> PublishTemplate:
    """Encode a PUBLISH but for its packet identifier.

    Raises:
        ValueError: A value does not fit into its field.
    """
    name = text(topic)
    tail = payload if version is not Version.V5 else properties(values) + payload
    size = variable(len(name) + len(tail) + (2 if qos else 0))
    return PublishTemplate(_FIRST_BYTES[qos << 1 | retain] + size + name, tail, qos)


_FIRST_BYTES: Final = tuple(bytes((PacketType.PUBLISH << 4 | flags,)) for flags in range(8))


def _framed(first: int, body: bytes) -> bytes:
    return bytes((first,)) + variable(len(body)) + body


def _connect(packet: Connect, _: Version) -> bytes:
    will = packet.will
    is_v5 = packet.version is Version.V5
    flags = packet.clean_start << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    parts = [text(packet.client_id)]
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        parts += [properties(will.properties)] if is_v5 else []
        parts += [text(will.topic), binary(will.payload)]
    if packet.username is not None:
        parts.append(text(packet.username))
    if packet.password is not None:
        parts.append(binary(packet.password))
    head = text("MQTT") + bytes((packet.version, flags)) + packet.keep_alive_s.to_bytes(2, "big")
    if is_v5:
        head += properties(packet.properties)
    return _framed(PacketType.CONNECT << 4, head + b"".join(parts))


def _connack(packet: Connack, version: Version) -> bytes:
    if version is Version.V5:
        body = bytes((packet.session_present, packet.reason_code)) + properties(packet.properties)
    else:
        return_code = RETURN_CODES.get(packet.reason_code, RETURN_CODES[ReasonCode.SERVER_UNAVAILABLE])
        body = bytes((packet.session_present, return_code))
    return _framed(PacketType.CONNACK << 4, body)


def _publish(packet: Publish, version: Version) -> bytes:
    template = publish_template(
        packet.topic, packet.payload, packet.qos, version, retain=packet.retain, values=packet.properties
    )
    return template.with_packet_id(packet.packet_id, dup=packet.dup)


def _acknowledgement(first: int) -> Callable[[Any, Version], bytes]:
    def encode_one(packet: Puback | Pubrec | Pubrel | Pubcomp, version: Version) -> bytes:
        return _framed(first, packet.packet_id.to_bytes(2, "big") + _ending(packet, version))

    return encode_one


def _ending(packet: Puback | Pubrec | Pubrel | Pubcomp | Disconnect | Auth, version: Version) -> bytes:
    """Reason code and properties, as short as they can be said."""
    if version is not Version.V5 or (not packet.reason_code and packet.properties is EMPTY):
        return b""
    body = bytes((packet.reason_code,))
    return body if packet.properties is EMPTY else body + properties(packet.properties)


def _headed(packet: Subscribe | Suback | Unsubscribe | Unsuback, version: Version) -> bytes:
    head = packet.packet_id.to_bytes(2, "big")
    return head + properties(packet.properties) if version is Version.V5 else head


def _subscribe(packet: Subscribe, version: Version) -> bytes:
    parts = [_headed(packet, version)]
    for one in packet.subscriptions:
        options = one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
        parts += (text(one.topic_filter), bytes((options,)))
    return _framed(PacketType.SUBSCRIBE << 4 | 2, b"".join(parts))


def _suback(packet: Suback, version: Version) -> bytes:
    codes = packet.reason_codes
    if version is not Version.V5:
        # MQTT 3.1.1 knows one failure.
        codes = tuple(min(code, ReasonCode.UNSPECIFIED_ERROR) for code in codes)
    return _framed(PacketType.SUBACK << 4, _headed(packet, version) + bytes(codes))


def _unsubscribe(packet: Unsubscribe, version: Version) -> bytes:
    filters = b"".join([text(one) for one in packet.topic_filters])
    return _framed(PacketType.UNSUBSCRIBE << 4 | 2, _headed(packet, version) + filters)


def _unsuback(packet: Unsuback, version: Version) -> bytes:
    codes = bytes(packet.reason_codes) if version is Version.V5 else b""
    return _framed(PacketType.UNSUBACK << 4, _headed(packet, version) + codes)


def _disconnect(packet: Disconnect, version: Version) -> bytes:
    return _framed(PacketType.DISCONNECT << 4, _ending(packet, version))


def _auth(packet: Auth, version: Version) -> bytes:
    return _framed(PacketType.AUTH << 4, _ending(packet, version))


_ENCODERS: Final[dict[type[Any], Callable[[Any, Version], bytes]]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: _publish,
    Puback: _acknowledgement(PacketType.PUBACK << 4),
    Pubrec: _acknowledgement(PacketType.PUBREC << 4),
    Pubrel: _acknowledgement(PacketType.PUBREL << 4 | 2),
    Pubcomp: _acknowledgement(PacketType.PUBCOMP << 4),
    Subscribe: _subscribe,
    Suback: _suback,
    Unsubscribe: _unsubscribe,
    Unsuback: _unsuback,
    Pingreq: lambda _packet, _version: _PINGREQ,
    Pingresp: lambda _packet, _version: _PINGRESP,
    Disconnect: _disconnect,
    Auth: _auth,
}
