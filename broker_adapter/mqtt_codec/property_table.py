"""All properties with their number, data type, limits and the packets that may have them (table 2-4 of MQTT 5).

The reader and the writer of properties, both in `mqtt_codec.property_section`, use this one declaration.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final

import attrs

from broker_adapter.mqtt_codec import primitives
from broker_adapter.mqtt_codec.primitives import MAX_VARIABLE
from broker_adapter.mqtt_codec.reason_codes import ReasonCode


class Place(enum.Flag):
    """Where properties occur. PUBLISH and DISCONNECT have different ones from a client and from a server."""

    CONNECT = enum.auto()
    WILL = enum.auto()
    CONNACK = enum.auto()
    CLIENT_PUBLISH = enum.auto()
    SERVER_PUBLISH = enum.auto()
    PUBACK = enum.auto()
    PUBREC = enum.auto()
    PUBREL = enum.auto()
    PUBCOMP = enum.auto()
    SUBSCRIBE = enum.auto()
    SUBACK = enum.auto()
    UNSUBSCRIBE = enum.auto()
    UNSUBACK = enum.auto()
    CLIENT_DISCONNECT = enum.auto()
    SERVER_DISCONNECT = enum.auto()
    AUTH = enum.auto()

    PUBLISH = CLIENT_PUBLISH | SERVER_PUBLISH
    ACKNOWLEDGEMENT = PUBACK | PUBREC | PUBREL | PUBCOMP
    DISCONNECT = CLIENT_DISCONNECT | SERVER_DISCONNECT
    MESSAGE = PUBLISH | WILL
    ANSWER = CONNACK | ACKNOWLEDGEMENT | SUBACK | UNSUBACK | DISCONNECT | AUTH
    EVERYWHERE = CONNECT | MESSAGE | SUBSCRIBE | UNSUBSCRIBE | ANSWER


NOWHERE: Final = Place(0)


@attrs.frozen(slots=True)
class DataType:
    """How a value is read and written."""

    read: Callable[[bytes, int, int], tuple[Any, int]]
    write: Callable[[Any], bytes]


BYTE: Final = DataType(primitives.read_byte, primitives.write_byte)
TWO_BYTES: Final = DataType(primitives.read_two_bytes, primitives.write_two_bytes)
FOUR_BYTES: Final = DataType(primitives.read_four_bytes, primitives.write_four_bytes)
VARIABLE: Final = DataType(primitives.read_variable, primitives.write_variable)
STRING: Final = DataType(primitives.read_string, primitives.write_string)
STRING_PAIR: Final = DataType(primitives.read_string_pair, primitives.write_string_pair)
BINARY: Final = DataType(primitives.read_binary, primitives.write_binary)


@attrs.frozen(slots=True)
class Property:
    """One property.

    Attributes:
        name: Attribute of `Properties`.
        limits: Least and greatest value of a number, if not all values of its type are allowed.
        limits_code: Reason code of a number outside the limits.
        repeats_in: Places where it may occur more than once.
        is_topic: It is a topic name.
    """

    identifier: int
    name: str
    type: DataType
    places: Place
    limits: tuple[int, int] | None = None
    limits_code: ReasonCode = ReasonCode.PROTOCOL_ERROR
    repeats_in: Place = NOWHERE
    is_topic: bool = False

    @property
    def is_tuple(self) -> bool:
        """Whether its value in `Properties` is a tuple of all occurrences."""
        return bool(self.repeats_in)


_YES_OR_NO: Final = (0, 1)
_P: Final = Place

PROPERTIES: Final = (
    Property(0x01, "payload_format_indicator", BYTE, _P.MESSAGE, _YES_OR_NO),
    Property(0x02, "message_expiry_interval", FOUR_BYTES, _P.MESSAGE),
    Property(0x03, "content_type", STRING, _P.MESSAGE),
    Property(0x08, "response_topic", STRING, _P.MESSAGE, is_topic=True),
    Property(0x09, "correlation_data", BINARY, _P.MESSAGE),
    Property(
        0x0B,
        "subscription_identifiers",
        VARIABLE,
        _P.SERVER_PUBLISH | _P.SUBSCRIBE,
        (1, MAX_VARIABLE),
        repeats_in=_P.SERVER_PUBLISH,
    ),
    Property(0x11, "session_expiry_interval", FOUR_BYTES, _P.CONNECT | _P.CONNACK | _P.CLIENT_DISCONNECT),
    Property(0x12, "assigned_client_identifier", STRING, _P.CONNACK),
    Property(0x13, "server_keep_alive", TWO_BYTES, _P.CONNACK),
    Property(0x15, "authentication_method", STRING, _P.CONNECT | _P.CONNACK | _P.AUTH),
    Property(0x16, "authentication_data", BINARY, _P.CONNECT | _P.CONNACK | _P.AUTH),
    Property(0x17, "request_problem_information", BYTE, _P.CONNECT, _YES_OR_NO),
    Property(0x18, "will_delay_interval", FOUR_BYTES, _P.WILL),
    Property(0x19, "request_response_information", BYTE, _P.CONNECT, _YES_OR_NO),
    Property(0x1A, "response_information", STRING, _P.CONNACK),
    Property(0x1C, "server_reference", STRING, _P.CONNACK | _P.DISCONNECT),
    Property(0x1F, "reason_string", STRING, _P.ANSWER),
    Property(0x21, "receive_maximum", TWO_BYTES, _P.CONNECT | _P.CONNACK, (1, 0xFFFF)),
    Property(0x22, "topic_alias_maximum", TWO_BYTES, _P.CONNECT | _P.CONNACK),
    Property(0x23, "topic_alias", TWO_BYTES, _P.PUBLISH, (1, 0xFFFF), limits_code=ReasonCode.TOPIC_ALIAS_INVALID),
    Property(0x24, "maximum_qos", BYTE, _P.CONNACK, _YES_OR_NO),
    Property(0x25, "retain_available", BYTE, _P.CONNACK, _YES_OR_NO),
    Property(0x26, "user_properties", STRING_PAIR, _P.EVERYWHERE, repeats_in=_P.EVERYWHERE),
    Property(0x27, "maximum_packet_size", FOUR_BYTES, _P.CONNECT | _P.CONNACK, (1, 0xFFFFFFFF)),
    Property(0x28, "wildcard_subscription_available", BYTE, _P.CONNACK, _YES_OR_NO),
    Property(0x29, "subscription_identifiers_available", BYTE, _P.CONNACK, _YES_OR_NO),
    Property(0x2A, "shared_subscription_available", BYTE, _P.CONNACK, _YES_OR_NO),
)

MESSAGE_EXPIRY_INTERVAL: Final = next(declared for declared in PROPERTIES if declared.identifier == 0x02)
TOPIC_ALIAS: Final = next(declared for declared in PROPERTIES if declared.identifier == 0x23)

# The standard says both: section 2.2.2.2 calls a property in a wrong place malformed, and by the definitions of section
# 1.2 bytes that can be decoded but are not allowed are a protocol error. Common brokers answer with the first for the
# packets of subscriptions and with the second for all others; clients expect that.
MALFORMED_WHERE_MISPLACED: Final = Place.SUBSCRIBE | Place.UNSUBSCRIBE
