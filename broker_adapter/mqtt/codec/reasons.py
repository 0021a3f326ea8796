"""Which packet may carry which reason code (the tables of section 3 of the standard)."""

from __future__ import annotations

from typing import Final

from broker_adapter.mqtt.codec.packets import PacketType
from broker_adapter.mqtt.codec.reason_codes import ReasonCode

RETURN_CODES: Final[dict[ReasonCode, int]] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
}
"""What MQTT 3.1.1 can say in CONNACK; of everything else it says that the server is unavailable."""

OF_RETURN_CODE: Final = {number: reason for reason, number in RETURN_CODES.items()}

_TAKEN_OVER: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED: Final = frozenset({0x00, 0x92})

ALLOWED_REASONS: Final[dict[PacketType, frozenset[int]]] = {
    PacketType.CONNACK: frozenset(
        {0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A}
        | {0x9B, 0x9C, 0x9D, 0x9F}
    ),
    PacketType.PUBACK: _TAKEN_OVER,
    PacketType.PUBREC: _TAKEN_OVER,
    PacketType.PUBREL: _RELEASED,
    PacketType.PUBCOMP: _RELEASED,
    PacketType.SUBACK: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    PacketType.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    PacketType.DISCONNECT: frozenset(
        {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)}
    ),
    PacketType.AUTH: frozenset({0x00, 0x18, 0x19}),
}
