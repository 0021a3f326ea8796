"""Which properties there are, what they are as bytes and which packets may have them: declared once, read both ways.

Section 2.2.2.2 of the standard. `codec.fields` reads and writes by this table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import attrs

from broker_adapter.mqtt.codec.packets import PacketType
from broker_adapter.mqtt.codec.reason_codes import ReasonCode


class Wire(enum.Enum):
    """How a value lies in bytes."""

    BYTE = enum.auto()
    TWO_BYTES = enum.auto()
    FOUR_BYTES = enum.auto()
    VARIABLE = enum.auto()
    TEXT = enum.auto()
    BINARY = enum.auto()
    PAIR = enum.auto()


WILL: Final = 16
"""Stands for the will's own properties inside CONNECT, beside the packet types."""


def _flag(value: object) -> bool:
    return value in (0, 1)


def _not_zero(value: object) -> bool:
    return value != 0


@attrs.frozen(slots=True)
class Property:
    """One property.

    Attributes:
        identifier: Its number on the wire.
        name: Attribute of `Properties`.
        packets: Types of packet that may have it (and `WILL`).
        repeats: It may occur more than once; the attribute is a tuple then.
        allows: Whether a value is one that the standard allows.
        fault: What a value that is not allowed is.
    """

    identifier: int
    name: str
    wire: Wire
    packets: frozenset[int]
    repeats: bool = False
    allows: Callable[[object], bool] | None = None
    fault: ReasonCode = ReasonCode.PROTOCOL_ERROR


def _in(*packets: int) -> frozenset[int]:
    return frozenset(packets)


_P = PacketType
_REASONS: Final = _in(
    _P.CONNACK,
    _P.PUBACK,
    _P.PUBREC,
    _P.PUBREL,
    _P.PUBCOMP,
    _P.SUBACK,
    _P.UNSUBACK,
    _P.DISCONNECT,
    _P.AUTH,
)
_EVERY: Final = _REASONS | _in(_P.CONNECT, _P.PUBLISH, WILL, _P.SUBSCRIBE, _P.UNSUBSCRIBE)
_BOTH_ENDS: Final = _in(_P.CONNECT, _P.CONNACK)
_MESSAGE: Final = _in(_P.PUBLISH, WILL)

PROPERTIES: Final = (
    Property(0x01, "payload_format_indicator", Wire.BYTE, _MESSAGE, allows=_flag),
    Property(0x02, "message_expiry_interval", Wire.FOUR_BYTES, _MESSAGE),
    Property(0x03, "content_type", Wire.TEXT, _MESSAGE),
    Property(0x08, "response_topic", Wire.TEXT, _MESSAGE),
    Property(0x09, "correlation_data", Wire.BINARY, _MESSAGE),
    Property(
        0x0B, "subscription_identifiers", Wire.VARIABLE, _in(_P.PUBLISH, _P.SUBSCRIBE), repeats=True, allows=_not_zero
    ),
    Property(0x11, "session_expiry_interval", Wire.FOUR_BYTES, _BOTH_ENDS | _in(_P.DISCONNECT)),
    Property(0x12, "assigned_client_identifier", Wire.TEXT, _in(_P.CONNACK)),
    Property(0x13, "server_keep_alive", Wire.TWO_BYTES, _in(_P.CONNACK)),
    Property(0x15, "authentication_method", Wire.TEXT, _BOTH_ENDS | _in(_P.AUTH)),
    Property(0x16, "authentication_data", Wire.BINARY, _BOTH_ENDS | _in(_P.AUTH)),
    Property(0x17, "request_problem_information", Wire.BYTE, _in(_P.CONNECT), allows=_flag),
    Property(0x18, "will_delay_interval", Wire.FOUR_BYTES, _in(WILL)),
    Property(0x19, "request_response_information", Wire.BYTE, _in(_P.CONNECT), allows=_flag),
    Property(0x1A, "response_information", Wire.TEXT, _in(_P.CONNACK)),
    Property(0x1C, "server_reference", Wire.TEXT, _in(_P.CONNACK, _P.DISCONNECT)),
    Property(0x1F, "reason_string", Wire.TEXT, _REASONS),
    Property(0x21, "receive_maximum", Wire.TWO_BYTES, _BOTH_ENDS, allows=_not_zero),
    Property(0x22, "topic_alias_maximum", Wire.TWO_BYTES, _BOTH_ENDS),
    Property(
        0x23,
        "topic_alias",
        Wire.TWO_BYTES,
        _in(_P.PUBLISH),
        allows=_not_zero,
        fault=ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    Property(0x24, "maximum_qos", Wire.BYTE, _in(_P.CONNACK), allows=_flag),
    Property(0x25, "retain_available", Wire.BYTE, _in(_P.CONNACK), allows=_flag),
    Property(0x26, "user_properties", Wire.PAIR, _EVERY, repeats=True),
    Property(0x27, "maximum_packet_size", Wire.FOUR_BYTES, _BOTH_ENDS, allows=_not_zero),
    Property(0x28, "wildcard_subscription_available", Wire.BYTE, _in(_P.CONNACK), allows=_flag),
    Property(0x29, "subscription_identifiers_available", Wire.BYTE, _in(_P.CONNACK), allows=_flag),
    Property(0x2A, "shared_subscription_available", Wire.BYTE, _in(_P.CONNACK), allows=_flag),
)

BY_IDENTIFIER: Final = {one.identifier: one for one in PROPERTIES}
