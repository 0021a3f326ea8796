"""The control packets of MQTT, as values; both versions have the same ones (MQTT 3.1.1 uses less of them).

What they are as bytes is said in `codec.decoder` and `codec.encoder`.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

from broker_adapter.mqtt.codec.properties import EMPTY, Properties
from broker_adapter.mqtt.codec.reason_codes import ReasonCode
from broker_adapter.mqtt.codec.version import Version


class PacketType(enum.IntEnum):
    """The upper four bits of a packet's first byte."""

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


@attrs.define(slots=True)
class Will:
    """What the server publishes for a client that went without DISCONNECT."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Connect:
    """A client's first packet. ``keep_alive_s`` 0 means none."""

    client_id: str = ""
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = EMPTY
    version: Version = Version.V5


@attrs.define(slots=True)
class Connack:
    """The answer to CONNECT. MQTT 3.1.1 has five return codes for refusals; see `codec.reasons`."""

    session_present: bool = False
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Publish:
    """A message. ``packet_id`` is 0 at QoS 0; an empty topic stands for the one of a topic alias."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = EMPTY


@attrs.define(slots=True)
class _Acknowledgement:
    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Puback(_Acknowledgement):
    """The receiver has taken over a message of QoS 1."""


@attrs.define(slots=True)
class Pubrec(_Acknowledgement):
    """The receiver has taken over a message of QoS 2 (if the reason is below 0x80)."""


@attrs.define(slots=True)
class Pubrel(_Acknowledgement):
    """The sender will not send that message again."""


@attrs.define(slots=True)
class Pubcomp(_Acknowledgement):
    """The receiver has forgotten the packet identifier."""


@attrs.define(slots=True)
class SubscriptionRequest:
    """One topic filter of a SUBSCRIBE, with its options."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@attrs.define(slots=True)
class Subscribe:
    """Asks for subscriptions, at least one."""

    packet_id: int
    subscriptions: tuple[SubscriptionRequest, ...]
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Suback:
    """What became of each subscription, in their order: the granted QoS or a failure."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Unsubscribe:
    """Ends subscriptions, at least one."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Unsuback:
    """What became of each; MQTT 3.1.1 does not say (an empty tuple)."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Pingreq:
    """The client is there."""


@attrs.define(slots=True)
class Pingresp:
    """The server is there."""


@attrs.define(slots=True)
class Disconnect:
    """The last packet of either side; only clients send it in MQTT 3.1.1."""

    reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Auth:
    """A step of an enhanced authentication; MQTT 5 only."""

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
