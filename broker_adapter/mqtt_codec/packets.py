"""The control packets as values, the same for MQTT 3.1.1 and 5. Their byte layouts are in the `..._bodies` modules.

Parts that MQTT 3.1.1 does not have (reason codes, properties, subscription options) have their defaults there. Packets
are plain values: nothing is checked when one is created. Those that there are many of are structs of msgspec, which
take a third of the time to make.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs
import msgspec

from broker_adapter.mqtt_codec.properties import EMPTY, Properties
from broker_adapter.mqtt_codec.reason_codes import ReasonCode


class Version(enum.IntEnum):
    """Protocol level in CONNECT."""

    V311 = 4
    V5 = 5


@attrs.define(slots=True)
class Will:
    """The message that the server publishes when the client's connection ends without DISCONNECT."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Connect:
    """A client's first packet.

    Attributes:
        clean_start: Discard an existing session; MQTT 3.1.1 calls it clean session.
        keep_alive_s: Keep-alive interval in seconds; 0 switches it off.
        version: Protocol version of the client.
    """

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
    """The server's answer to CONNECT. In MQTT 3.1.1 the nearest return code replaces the reason code."""

    session_present: bool = False
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


class Publish(msgspec.Struct, gc=False):
    """A message.

    Attributes:
        topic: Empty only if a topic alias replaces it.
        packet_id: 0 with QoS 0, from 1 to 65,535 otherwise.
    """

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = EMPTY


class Puback(msgspec.Struct, gc=False):
    """Answer to a PUBLISH of QoS 1."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


class Pubrec(msgspec.Struct, gc=False):
    """Answer to a PUBLISH of QoS 2: received."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


class Pubrel(msgspec.Struct, gc=False):
    """Answer to PUBREC: the packet identifier is released."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


class Pubcomp(msgspec.Struct, gc=False):
    """Answer to PUBREL: a delivery of QoS 2 is complete."""

    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = EMPTY


@attrs.frozen(slots=True)
class SubscriptionRequest:
    """One topic filter of a SUBSCRIBE with its options.

    Attributes:
        retain_handling: 0 send retained messages, 1 only if the subscription is new, 2 never.
    """

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@attrs.define(slots=True)
class Subscribe:
    """A request for subscriptions."""

    packet_id: int
    subscriptions: tuple[SubscriptionRequest, ...]
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Suback:
    """Answer to SUBSCRIBE with a reason code for each filter; MQTT 3.1.1 has a single code for all failures."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Unsubscribe:
    """A request to end subscriptions."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Unsuback:
    """Answer to UNSUBSCRIBE with a reason code for each filter; MQTT 3.1.1 has no codes."""

    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Pingreq:
    """A keep-alive packet of a client."""


@attrs.define(slots=True)
class Pingresp:
    """Answer to PINGREQ."""


@attrs.define(slots=True)
class Disconnect:
    """The last packet of a connection; in MQTT 3.1.1 only clients send it, without a reason."""

    reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = EMPTY


@attrs.define(slots=True)
class Auth:
    """A step of extended authentication; MQTT 5 only."""

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
