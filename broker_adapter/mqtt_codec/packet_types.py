"""Packet types: their numbers and flags, who may send them, and with which reason codes."""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias

import attrs

from broker_adapter.mqtt_codec.packets import Version
from broker_adapter.mqtt_codec.reason_codes import ReasonCode

Side: TypeAlias = Literal["client", "server"]


class PacketType(enum.IntEnum):
    """Upper four bits of a packet's first byte (section 2.1.2 of the standard)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@attrs.frozen(slots=True)
class FirstByte:
    """Allowed first bytes of a packet type.

    Attributes:
        flags: The lower four bits; those of PUBLISH vary, and are decoded with it.
        senders: The sides that may send it.
    """

    flags: int = 0
    senders: tuple[Side, ...] = ("client", "server")


FIRST_BYTES: Final = {
    PacketType.CONNECT: FirstByte(senders=("client",)),
    PacketType.CONNACK: FirstByte(senders=("server",)),
    PacketType.PUBLISH: FirstByte(),
    PacketType.PUBACK: FirstByte(),
    PacketType.PUBREC: FirstByte(),
    PacketType.PUBREL: FirstByte(flags=0b0010),
    PacketType.PUBCOMP: FirstByte(),
    PacketType.SUBSCRIBE: FirstByte(flags=0b0010, senders=("client",)),
    PacketType.SUBACK: FirstByte(senders=("server",)),
    PacketType.UNSUBSCRIBE: FirstByte(flags=0b0010, senders=("client",)),
    PacketType.UNSUBACK: FirstByte(senders=("server",)),
    PacketType.PINGREQ: FirstByte(senders=("client",)),
    PacketType.PINGRESP: FirstByte(senders=("server",)),
    PacketType.DISCONNECT: FirstByte(),
    PacketType.AUTH: FirstByte(),
}


def first_byte(packet_type: PacketType) -> int:
    """The first byte of every packet of a type; for PUBLISH the one with no flag set."""
    return packet_type << 4 | FIRST_BYTES[packet_type].flags


def why_not(packet_type: PacketType, sender: Side, version: Version, *, authenticates: bool) -> str:
    """Why packets of a type may not come from ``sender`` after CONNECT; empty if they may.

    Args:
        authenticates: CONNECT named an authentication method.
    """
    if packet_type is PacketType.CONNECT and sender == "client":
        return "second CONNECT on the connection"
    if packet_type is PacketType.AUTH and version is Version.V311:
        return "AUTH received, which MQTT 3.1.1 does not have"
    if packet_type is PacketType.AUTH and not authenticates:
        return "AUTH received although CONNECT named no authentication method"
    if packet_type is PacketType.DISCONNECT and version is Version.V311 and sender == "server":
        return "DISCONNECT received from the server, in MQTT 3.1.1 only clients may send it"
    senders = FIRST_BYTES[packet_type].senders
    return "" if sender in senders else f"{packet_type.name} received from the {sender}, only a {senders[0]} sends it"


def codes(*ranges: int | tuple[int, int]) -> frozenset[ReasonCode]:
    """The reason codes with these numbers, and for a pair all defined ones from the first to the last."""
    numbers: set[int] = set()
    for item in ranges:
        numbers.update(range(item[0], item[1] + 1) if isinstance(item, tuple) else (item,))
    return frozenset(ReasonCode(number) for number in numbers)


_DISCONNECT_OF_BOTH: Final = codes(0x00, (0x80, 0x83), 0x90, (0x93, 0x99))
_PUBLISH_ANSWER: Final = codes(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_RELEASE_ANSWER: Final = codes(0x00, 0x92)

REASON_CODES: Final[dict[tuple[PacketType, Side], frozenset[ReasonCode]]] = {
    (PacketType.CONNACK, "server"): codes(0x00, (0x80, 0x8A), 0x8C, 0x90, 0x95, 0x97, (0x99, 0x9D), 0x9F),
    (PacketType.PUBACK, "client"): _PUBLISH_ANSWER,
    (PacketType.PUBACK, "server"): _PUBLISH_ANSWER,
    (PacketType.PUBREC, "client"): _PUBLISH_ANSWER,
    (PacketType.PUBREC, "server"): _PUBLISH_ANSWER,
    (PacketType.PUBREL, "client"): _RELEASE_ANSWER,
    (PacketType.PUBREL, "server"): _RELEASE_ANSWER,
    (PacketType.PUBCOMP, "client"): _RELEASE_ANSWER,
    (PacketType.PUBCOMP, "server"): _RELEASE_ANSWER,
    (PacketType.SUBACK, "server"): codes((0x00, 0x02), 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2),
    (PacketType.UNSUBACK, "server"): codes(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91),
    (PacketType.DISCONNECT, "client"): _DISCONNECT_OF_BOTH | codes(0x04),
    (PacketType.DISCONNECT, "server"): _DISCONNECT_OF_BOTH | codes(0x87, 0x89, 0x8B, (0x8D, 0x8F), (0x9A, 0xA2)),
    (PacketType.AUTH, "client"): codes(0x18, 0x19),
    (PacketType.AUTH, "server"): codes(0x00, 0x18),
}
"""Which reason codes a packet of MQTT 5 may carry, by who sends it (tables 3-1, 3-4 to 3-11 and 3-13)."""
