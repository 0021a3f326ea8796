"""The bodies of the control packets, but for PUBLISH: fields into values, with all that one packet alone can show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_adapter.mqtt.codec.errors import MqttProtocolError, malformed, protocol_error
from broker_adapter.mqtt.codec.fields import Reader
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
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from broker_adapter.mqtt.codec.properties import EMPTY, Properties
from broker_adapter.mqtt.codec.property_table import WILL
from broker_adapter.mqtt.codec.reason_codes import ReasonCode
from broker_adapter.mqtt.codec.reasons import ALLOWED_REASONS, OF_RETURN_CODE
from broker_adapter.mqtt.codec.topic_syntax import check_filter, check_topic
from broker_adapter.mqtt.codec.version import Version


def _connect(reader: Reader, _is_v5: bool) -> Connect:
    name, level = reader.text("the protocol name"), reader.byte("the protocol level")
    if (name, level) not in (("MQTT", 4), ("MQTT", 5)):
        raise MqttProtocolError(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"the protocol is {name!a} at level {level}, it must be 'MQTT' at 4 (3.1.1) or 5",
        )
    version = Version(level)
    flags = reader.byte("the connect flags")
    will_qos = flags >> 3 & 3
    if flags & 1:
        raise malformed("CONNECT has its reserved flag set")
    if will_qos == 3:
        raise malformed("CONNECT has a will of QoS 3")
    if not flags & 4 and flags & 0x38:
        raise malformed("CONNECT has flags of a will, but no will")
    if version is Version.V311 and flags & 0x40 and not flags & 0x80:
        raise malformed("CONNECT has a password, but no user name")
    keep_alive_s = reader.two_bytes("the keep alive")
    is_v5 = version is Version.V5
    properties = reader.properties(PacketType.CONNECT) if is_v5 else EMPTY
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise protocol_error("CONNECT has authentication data, but no method")
    client_id = _client_id(reader)
    will = _will(reader, is_v5, flags, will_qos) if flags & 4 else None
    return Connect(
        client_id,
        flags & 2 == 2,
        keep_alive_s,
        reader.name("the user name") if flags & 0x80 else None,
        reader.binary("the password") if flags & 0x40 else None,
        will,
        properties,
        version,
    )


def _client_id(reader: Reader) -> str:
    try:
        return reader.name("the client identifier")
    except MqttProtocolError as error:
        error.reason_code = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        raise


def _will(reader: Reader, is_v5: bool, flags: int, qos: int) -> Will:
    properties = reader.properties(WILL) if is_v5 else EMPTY
    if properties.response_topic is not None:
        check_topic(properties.response_topic)
    topic = reader.name("the will topic")
    check_topic(topic)
    return Will(topic, reader.binary("the will payload"), qos, flags & 0x20 == 0x20, properties)


def _connack(reader: Reader, is_v5: bool) -> Connack:
    flags = reader.byte("the acknowledge flags")
    if flags & 0xFE:
        raise malformed("CONNACK has a reserved flag set")
    reason_code = _reason(reader, PacketType.CONNACK) if is_v5 else _return_code(reader)
    properties = reader.properties(PacketType.CONNACK) if is_v5 else EMPTY
    return Connack(flags == 1, reason_code, properties)


def _reason(reader: Reader, kind: PacketType) -> ReasonCode:
    reason_code = reader.byte("the reason code")
    if reason_code not in ALLOWED_REASONS[kind]:
        raise protocol_error(f"{kind.name} has the reason code 0x{reason_code:02x}")
    return ReasonCode(reason_code)


def _return_code(reader: Reader) -> ReasonCode:
    return_code = reader.byte("the return code")
    found = OF_RETURN_CODE.get(return_code)
    if found is None:
        raise malformed(f"CONNACK has the return code {return_code}")
    return found


def _acknowledgement(reader: Reader, is_v5: bool, kind: PacketType) -> tuple[int, ReasonCode, Properties]:
    packet_id = reader.packet_id()
    if not is_v5 or reader.is_at_end():
        return packet_id, ReasonCode.SUCCESS, EMPTY
    reason_code = _reason(reader, kind)
    return packet_id, reason_code, EMPTY if reader.is_at_end() else reader.properties(kind)


def _puback(reader: Reader, is_v5: bool) -> Puback:
    return Puback(*_acknowledgement(reader, is_v5, PacketType.PUBACK))


def _pubrec(reader: Reader, is_v5: bool) -> Pubrec:
    return Pubrec(*_acknowledgement(reader, is_v5, PacketType.PUBREC))


def _pubrel(reader: Reader, is_v5: bool) -> Pubrel:
    return Pubrel(*_acknowledgement(reader, is_v5, PacketType.PUBREL))


def _pubcomp(reader: Reader, is_v5: bool) -> Pubcomp:
    return Pubcomp(*_acknowledgement(reader, is_v5, PacketType.PUBCOMP))


def _subscribe(reader: Reader, is_v5: bool) -> Subscribe:
    packet_id = reader.packet_id()
    properties = EMPTY
    if is_v5:
        properties = reader.properties(PacketType.SUBSCRIBE)
        if len(properties.subscription_identifiers) > 1:
            raise protocol_error("SUBSCRIBE has more than one subscription identifier")
    subscriptions: list[SubscriptionRequest] = []
    while not reader.is_at_end():
        subscriptions.append(_subscription(reader, is_v5))
    if not subscriptions:
        raise protocol_error("SUBSCRIBE has no topic filter")
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _subscription(reader: Reader, is_v5: bool) -> SubscriptionRequest:
    topic_filter = reader.name("a topic filter")
    check_filter(topic_filter)
    options = reader.byte("the subscription options")
    if options & 3 == 3 or options & (0xC0 if is_v5 else 0xFC):
        raise malformed(f"SUBSCRIBE has the options 0x{options:02x}")
    retain_handling = options >> 4
    if retain_handling == 3:
        raise protocol_error("SUBSCRIBE has the retain handling 3")
    if options & 4 and topic_filter.startswith("$share/"):
        raise protocol_error("a shared subscription has the no local option")
    return SubscriptionRequest(topic_filter, options & 3, options & 4 == 4, options & 8 == 8, retain_handling)


def _suback(reader: Reader, is_v5: bool) -> Suback:
    packet_id, properties, codes = _answers(reader, is_v5, PacketType.SUBACK)
    allowed = ALLOWED_REASONS[PacketType.SUBACK] if is_v5 else (0, 1, 2, 0x80)
    if not codes or any(code not in allowed for code in codes):
        raise malformed(f"SUBACK has the reason codes {codes!r}")
    return Suback(packet_id, tuple(map(ReasonCode, codes)), properties)


def _answers(reader: Reader, is_v5: bool, kind: PacketType) -> tuple[int, Properties, bytes]:
    packet_id = reader.packet_id()
    properties = reader.properties(kind) if is_v5 else EMPTY
    return packet_id, properties, reader.rest()


def _unsubscribe(reader: Reader, is_v5: bool) -> Unsubscribe:
    packet_id = reader.packet_id()
    properties = reader.properties(PacketType.UNSUBSCRIBE) if is_v5 else EMPTY
    filters: list[str] = []
    while not reader.is_at_end():
        topic_filter = reader.name("a topic filter")
        check_filter(topic_filter)
        filters.append(topic_filter)
    if not filters:
        raise protocol_error("UNSUBSCRIBE has no topic filter")
    return Unsubscribe(packet_id, tuple(filters), properties)


def _unsuback(reader: Reader, is_v5: bool) -> Unsuback:
    if not is_v5:
        return Unsuback(reader.packet_id())
    packet_id, properties, codes = _answers(reader, is_v5, PacketType.UNSUBACK)
    if not codes or any(code not in ALLOWED_REASONS[PacketType.UNSUBACK] for code in codes):
        raise malformed(f"UNSUBACK has the reason codes {codes!r}")
    return Unsuback(packet_id, tuple(map(ReasonCode, codes)), properties)


def _pingreq(_reader: Reader, _is_v5: bool) -> Pingreq:
    return Pingreq()


def _pingresp(_reader: Reader, _is_v5: bool) -> Pingresp:
    return Pingresp()


def _disconnect(reader: Reader, is_v5: bool) -> Disconnect:
    return Disconnect(*_ending(reader, is_v5, PacketType.DISCONNECT))


def _ending(reader: Reader, is_v5: bool, kind: PacketType) -> tuple[ReasonCode, Properties]:
    if not is_v5 or reader.is_at_end():
        return ReasonCode.SUCCESS, EMPTY
    reason_code = _reason(reader, kind)
    return reason_code, EMPTY if reader.is_at_end() else reader.properties(kind)


def _auth(reader: Reader, is_v5: bool) -> Auth:
    return Auth(*_ending(reader, is_v5, PacketType.AUTH))


BODIES: Final[dict[int, Callable[[Reader, bool], Packet]]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBACK: _puback,
    PacketType.PUBREC: _pubrec,
    PacketType.PUBREL: _pubrel,
    PacketType.PUBCOMP: _pubcomp,
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: _pingreq,
    PacketType.PINGRESP: _pingresp,
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
