"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK after the fixed header."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_adapter.mqtt_codec.errors import MqttProtocolError, malformed, protocol_error
from broker_adapter.mqtt_codec.fixed_header import framed
from broker_adapter.mqtt_codec.packet_types import REASON_CODES, PacketType, first_byte
from broker_adapter.mqtt_codec.packets import Suback, Subscribe, SubscriptionRequest, Unsuback, Unsubscribe, Version
from broker_adapter.mqtt_codec.primitives import (
    MAX_TWO_BYTES,
    TWO_BYTES,
    read_binary,
    read_byte,
    read_two_bytes,
    write_string,
)
from broker_adapter.mqtt_codec.properties import EMPTY, Properties
from broker_adapter.mqtt_codec.property_section import read_properties, write_properties
from broker_adapter.mqtt_codec.property_table import Place
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from broker_adapter.mqtt_codec.text import is_shared, shown, topic_filter

MAX_FILTERS: Final = 10_000
"""Most topic filters of a SUBSCRIBE or UNSUBSCRIBE. The standard has no limit but the size of the packet: a million,
which take so long to read that other clients have to wait."""

# Options of a subscription: QoS in bits 0 and 1, retain handling in bits 4 and 5.
_QOS: Final = 0x03
_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_RETAIN_HANDLING: Final = 0x30
_RETAIN_HANDLING_SHIFT: Final = 4
_RESERVED: Final = 0xC0

_SUBACK_CODES_311: Final = {
    0x00: ReasonCode.GRANTED_QOS_0,
    0x01: ReasonCode.GRANTED_QOS_1,
    0x02: ReasonCode.GRANTED_QOS_2,
    0x80: ReasonCode.UNSPECIFIED_ERROR,
}


def _read_head(
    name: str, place: Place, version: Version, data: bytes, at: int, stop: int
) -> tuple[int, Properties, int]:
    """The common beginning of all four: the packet identifier and, in MQTT 5, properties."""
    packet_id, at = read_two_bytes(data, at, stop)
    if not packet_id:
        raise protocol_error(f"{name} has packet identifier 0, it must be from 1 to {MAX_TWO_BYTES}")
    if version is Version.V311:
        return packet_id, EMPTY, at
    properties, at = read_properties(place, data, at, stop)
    return packet_id, properties, at


def _write_head(packet_id: int, place: Place, properties: Properties, version: Version) -> bytes:
    if not 1 <= packet_id <= MAX_TWO_BYTES:
        raise ValueError(f"packet identifier is {packet_id}, it must be from 1 to {MAX_TWO_BYTES}")
    head = TWO_BYTES.pack(packet_id)
    return head if version is Version.V311 else head + write_properties(place, properties)


def read_subscribe(version: Version) -> Callable[[int, bytes, int, int], Subscribe]:
    """Make the reader of SUBSCRIBE for a version."""

    def read(_first: int, data: bytes, at: int, stop: int) -> Subscribe:
        packet_id, properties, at = _read_head("SUBSCRIBE", Place.SUBSCRIBE, version, data, at, stop)
        subscriptions: list[SubscriptionRequest] = []
        while at < stop:
            raw, at = read_binary(data, at, stop)
            options, at = read_byte(data, at, stop)
            if len(subscriptions) == MAX_FILTERS:
                raise _too_many("SUBSCRIBE")
            subscriptions.append(_subscription(topic_filter(raw), options, version))
        if not subscriptions:
            raise protocol_error("SUBSCRIBE has no topic filter, it must have at least one")
        return Subscribe(packet_id, tuple(subscriptions), properties)

    return read


def _too_many(name: str) -> MqttProtocolError:
    return MqttProtocolError(
        ReasonCode.QUOTA_EXCEEDED, f"{name} has more than {MAX_FILTERS} topic filters, which is the most allowed"
    )


def _subscription(filter_text: str, options: int, version: Version) -> SubscriptionRequest:
    qos = options & _QOS
    if version is Version.V311:
        if options > 2:
            raise malformed(f"SUBSCRIBE has the requested QoS {options:#04x}, it must be 0, 1 or 2")
        return SubscriptionRequest(filter_text, qos)
    retain_handling = (options & _RETAIN_HANDLING) >> _RETAIN_HANDLING_SHIFT
    if options & _RESERVED:
        raise malformed(f"SUBSCRIBE has the subscription options {options:#04x}, the two upper bits must be 0")
    if qos > 2:
        # Malformed, as in MQTT 3.1.1 and as common brokers answer; the text of MQTT 5 calls it a protocol error.
        raise malformed("SUBSCRIBE has maximum QoS 3, it must be 0, 1 or 2")
    if retain_handling > 2:
        raise protocol_error("SUBSCRIBE has retain handling 3, it must be 0, 1 or 2")
    no_local = bool(options & _NO_LOCAL)
    if no_local and is_shared(filter_text):
        raise protocol_error(f"SUBSCRIBE has no local with the shared subscription {shown(filter_text)}")
    return SubscriptionRequest(filter_text, qos, no_local, bool(options & _RETAIN_AS_PUBLISHED), retain_handling)


def write_subscribe(packet: Subscribe, version: Version) -> bytes:
    """Write a SUBSCRIBE; of the options MQTT 3.1.1 has only the QoS."""
    parts = [_write_head(packet.packet_id, Place.SUBSCRIBE, packet.properties, version)]
    for wanted in packet.subscriptions:
        options = wanted.qos
        if not (0 <= options <= 2 and 0 <= wanted.retain_handling <= 2):
            raise ValueError(
                f"SUBSCRIBE has QoS {options} and retain handling {wanted.retain_handling}, each must be 0, 1 or 2"
            )
        if version is Version.V5:
            options |= wanted.retain_handling << _RETAIN_HANDLING_SHIFT
            options |= _NO_LOCAL if wanted.no_local else 0
            options |= _RETAIN_AS_PUBLISHED if wanted.retain_as_published else 0
        parts += (write_string(wanted.topic_filter), bytes((options,)))
    return framed(first_byte(PacketType.SUBSCRIBE), b"".join(parts))


def read_suback(version: Version) -> Callable[[int, bytes, int, int], Suback]:
    """Make the reader of SUBACK for a version."""
    known = _SUBACK_CODES_311 if version is Version.V311 else _allowed(PacketType.SUBACK)

    def read(_first: int, data: bytes, at: int, stop: int) -> Suback:
        packet_id, properties, at = _read_head("SUBACK", Place.SUBACK, version, data, at, stop)
        return Suback(packet_id, _reason_codes("SUBACK", known, data[at:stop]), properties)

    return read


def write_suback(packet: Suback, version: Version) -> bytes:
    """Write a SUBACK; MQTT 3.1.1 has a single code for all failures."""
    codes = packet.reason_codes
    if version is Version.V311:
        codes = tuple(min(ReasonCode.UNSPECIFIED_ERROR, code) for code in codes)
    head = _write_head(packet.packet_id, Place.SUBACK, packet.properties, version)
    return framed(first_byte(PacketType.SUBACK), head + bytes(codes))


def read_unsubscribe(version: Version) -> Callable[[int, bytes, int, int], Unsubscribe]:
    """Make the reader of UNSUBSCRIBE for a version."""

    def read(_first: int, data: bytes, at: int, stop: int) -> Unsubscribe:
        packet_id, properties, at = _read_head("UNSUBSCRIBE", Place.UNSUBSCRIBE, version, data, at, stop)
        filters: list[str] = []
        while at < stop:
            raw, at = read_binary(data, at, stop)
            if len(filters) == MAX_FILTERS:
                raise _too_many("UNSUBSCRIBE")
            filters.append(topic_filter(raw))
        if not filters:
            raise protocol_error("UNSUBSCRIBE has no topic filter, it must have at least one")
        return Unsubscribe(packet_id, tuple(filters), properties)

    return read


def write_unsubscribe(packet: Unsubscribe, version: Version) -> bytes:
    """Write an UNSUBSCRIBE."""
    parts = [_write_head(packet.packet_id, Place.UNSUBSCRIBE, packet.properties, version)]
    parts += [write_string(wanted) for wanted in packet.topic_filters]
    return framed(first_byte(PacketType.UNSUBSCRIBE), b"".join(parts))


def read_unsuback(version: Version) -> Callable[[int, bytes, int, int], Unsuback]:
    """Make the reader of UNSUBACK for a version."""
    known = _allowed(PacketType.UNSUBACK)

    def read(_first: int, data: bytes, at: int, stop: int) -> Unsuback:
        packet_id, properties, at = _read_head("UNSUBACK", Place.UNSUBACK, version, data, at, stop)
        if version is Version.V311:
            if at != stop:
                raise malformed(f"UNSUBACK has {stop - at} bytes too many")
            return Unsuback(packet_id)
        return Unsuback(packet_id, _reason_codes("UNSUBACK", known, data[at:stop]), properties)

    return read


def write_unsuback(packet: Unsuback, version: Version) -> bytes:
    """Write an UNSUBACK; MQTT 3.1.1 has no reason codes in it."""
    head = _write_head(packet.packet_id, Place.UNSUBACK, packet.properties, version)
    codes = b"" if version is Version.V311 else bytes(packet.reason_codes)
    return framed(first_byte(PacketType.UNSUBACK), head + codes)


def _allowed(packet_type: PacketType) -> dict[int, ReasonCode]:
    return {int(code): code for code in REASON_CODES[packet_type, "server"]}


def _reason_codes(name: str, known: dict[int, ReasonCode], raw: bytes) -> tuple[ReasonCode, ...]:
    if not raw:
        raise protocol_error(f"{name} has no reason code, it must have one for each topic filter")
    try:
        return tuple(known[code] for code in raw)
    except KeyError as unknown:
        raise protocol_error(f"{name} has the reason code {unknown.args[0]:#04x}, which it cannot have") from None
