"""CONNECT, CONNACK, DISCONNECT and AUTH after the fixed header: the begin and the end of a connection."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

from broker_adapter.mqtt_codec.errors import MqttProtocolError, malformed, protocol_error
from broker_adapter.mqtt_codec.fixed_header import framed
from broker_adapter.mqtt_codec.packet_types import REASON_CODES, PacketType, Side, first_byte
from broker_adapter.mqtt_codec.packets import Auth, Connack, Connect, Disconnect, Version, Will
from broker_adapter.mqtt_codec.primitives import (
    read_binary,
    read_byte,
    read_two_bytes,
    write_binary,
    write_byte,
    write_string,
    write_two_bytes,
)
from broker_adapter.mqtt_codec.properties import EMPTY
from broker_adapter.mqtt_codec.property_section import is_empty, read_properties, write_properties
from broker_adapter.mqtt_codec.property_table import Place
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from broker_adapter.mqtt_codec.text import client_identifier, topic_name, user_name

_PROTOCOL_NAME: Final = b"MQTT"
_OLD_PROTOCOL_NAME: Final = b"MQIsdp"
_OLD_LEVEL: Final = 3
"""Protocol level of MQTT 3.1. A client with this or a lower level can only be sent return codes."""

_SESSION_PRESENT: Final = 0x01

_RETURN_CODES: Final = {
    0: ReasonCode.SUCCESS,
    1: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    2: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    3: ReasonCode.SERVER_UNAVAILABLE,
    4: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    5: ReasonCode.NOT_AUTHORIZED,
}
_RETURN_CODE_OF: Final = {
    **{reason_code: return_code for return_code, reason_code in _RETURN_CODES.items()},
    ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
    ReasonCode.BANNED: 5,
}
_OTHER_RETURN_CODE: Final = 3


class ConnectFlags(enum.IntFlag):
    """The flags of CONNECT; the bits between are the QoS of the will."""

    RESERVED = 0x01
    CLEAN_START = 0x02
    WILL = 0x04
    WILL_RETAIN = 0x20
    PASSWORD = 0x40
    USER_NAME = 0x80


_WILL_QOS_SHIFT: Final = 3
_WILL_QOS_BITS: Final = 0x18


def read_connect(_first: int, data: bytes, at: int, stop: int) -> Connect:
    """Read a CONNECT of any supported version; an error has the answer in the form of the client's version."""
    name, at = read_binary(data, at, stop)
    level, at = read_byte(data, at, stop)
    version = _version(name, level)
    try:
        return _read_connect(version, data, at, stop)
    except MqttProtocolError as error:
        if version is Version.V5 and error.is_answerable:
            error.answer = write_connack(Connack(reason_code=error.reason_code), Version.V5)
        raise


def _version(name: bytes, level: int) -> Version:
    if name == _PROTOCOL_NAME and level in (Version.V311, Version.V5):
        return Version(level)
    if name == _OLD_PROTOCOL_NAME and level == _OLD_LEVEL:
        # MQTT 3.1 has the same packets as 3.1.1, with fewer rules.
        return Version.V311
    if name not in (_PROTOCOL_NAME, _OLD_PROTOCOL_NAME):
        raise protocol_error(f"protocol name is {name[:20]!r}, it must be 'MQTT'", is_answerable=False)
    message = (
        f"protocol is {name.decode()} level {level}, it must be MQTT level {Version.V311:d} (3.1.1) or {Version.V5:d}"
    )
    if name == _OLD_PROTOCOL_NAME or level == _OLD_LEVEL:
        raise _refused_with_return_code(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, message)
    error = MqttProtocolError(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, message)
    error.answer = write_connack(Connack(reason_code=error.reason_code), Version.V5)
    raise error


def _read_connect(version: Version, data: bytes, at: int, stop: int) -> Connect:
    try:
        flags, at = read_byte(data, at, stop)
        _check_flags(flags, version)
        keep_alive_s, at = read_two_bytes(data, at, stop)
    except MqttProtocolError as error:
        # The flags decide the layout of the rest; if they are wrong, the rest cannot be decoded.
        error.is_answerable = False
        raise
    properties = EMPTY
    if version is Version.V5:
        properties, at = read_properties(Place.CONNECT, data, at, stop)
    raw, at = read_binary(data, at, stop)
    client_id = client_identifier(raw)
    will = None
    if flags & ConnectFlags.WILL:
        will, at = _read_will(flags, version, data, at, stop)
    username, password, at = _read_credentials(flags, data, at, stop)
    if at != stop:
        raise malformed(f"CONNECT has {stop - at} bytes too many")
    clean_start = bool(flags & ConnectFlags.CLEAN_START)
    if version is Version.V311 and not client_id and not clean_start:
        raise _refused_with_return_code(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client identifier is empty, which needs clean session"
        )
    return Connect(client_id, clean_start, keep_alive_s, username, password, will, properties, version)


def _refused_with_return_code(reason_code: ReasonCode, message: str) -> MqttProtocolError:
    error = MqttProtocolError(reason_code, message)
    error.answer = write_connack(Connack(reason_code=reason_code), Version.V311)
    return error


def _check_flags(flags: int, version: Version) -> None:
    if flags & ConnectFlags.RESERVED:
        raise malformed("CONNECT has the reserved flag, it must not be set")
    will_qos = (flags & _WILL_QOS_BITS) >> _WILL_QOS_SHIFT
    if will_qos > 2:
        raise malformed("CONNECT has will QoS 3, it must be 0, 1 or 2")
    if not flags & ConnectFlags.WILL and flags & (_WILL_QOS_BITS | ConnectFlags.WILL_RETAIN):
        raise malformed("CONNECT has will QoS or will retain without a will")
    if version is Version.V311 and flags & ConnectFlags.PASSWORD and not flags & ConnectFlags.USER_NAME:
        raise malformed("CONNECT has a password without a user name, which MQTT 3.1.1 forbids")


def _read_will(flags: int, version: Version, data: bytes, at: int, stop: int) -> tuple[Will, int]:
    properties = EMPTY
    if version is Version.V5:
        properties, at = read_properties(Place.WILL, data, at, stop)
    raw, at = read_binary(data, at, stop)
    topic = topic_name(raw)
    if not topic:
        raise protocol_error("will topic is empty, it must have at least one character")
    payload, at = read_binary(data, at, stop)
    qos = (flags & _WILL_QOS_BITS) >> _WILL_QOS_SHIFT
    return Will(topic, payload, qos, bool(flags & ConnectFlags.WILL_RETAIN), properties), at


def _read_credentials(flags: int, data: bytes, at: int, stop: int) -> tuple[str | None, bytes | None, int]:
    username, password = None, None
    try:
        if flags & ConnectFlags.USER_NAME:
            raw, at = read_binary(data, at, stop)
            username = user_name(raw)
        if flags & ConnectFlags.PASSWORD:
            password, at = read_binary(data, at, stop)
    except MqttProtocolError as error:
        # A client with an undecodable user name gets no answer.
        error.is_answerable = False
        raise
    return username, password, at


def write_connect(packet: Connect, version: Version) -> bytes:
    """Write a CONNECT; the version is the packet's own."""
    if version is not packet.version:
        raise ValueError(f"CONNECT is of version {packet.version.name}, it cannot be written as {version.name}")
    flags, will = 0, packet.will
    if packet.clean_start:
        flags |= ConnectFlags.CLEAN_START
    payload = [write_string(packet.client_id)]
    if will is not None:
        if not 0 <= will.qos <= 2:
            raise ValueError(f"CONNECT has will QoS {will.qos}, it must be 0, 1 or 2")
        flags |= ConnectFlags.WILL | will.qos << _WILL_QOS_SHIFT
        if will.retain:
            flags |= ConnectFlags.WILL_RETAIN
        if version is Version.V5:
            payload.append(write_properties(Place.WILL, will.properties))
        payload += (write_string(will.topic), write_binary(will.payload))
    if packet.username is not None:
        flags |= ConnectFlags.USER_NAME
        payload.append(write_string(packet.username))
    if packet.password is not None:
        flags |= ConnectFlags.PASSWORD
        payload.append(write_binary(packet.password))
    head = [write_binary(_PROTOCOL_NAME), write_byte(version), write_byte(flags), write_two_bytes(packet.keep_alive_s)]
    if version is Version.V5:
        head.append(write_properties(Place.CONNECT, packet.properties))
    return framed(first_byte(PacketType.CONNECT), b"".join(head + payload))


def read_connack(version: Version) -> Callable[[int, bytes, int, int], Connack]:
    """Make the reader of CONNACK for a version."""
    reason_codes = _RETURN_CODES if version is Version.V311 else _allowed(PacketType.CONNACK, "server")

    def read(_first: int, data: bytes, at: int, stop: int) -> Connack:
        flags, at = read_byte(data, at, stop)
        if flags & ~_SESSION_PRESENT:
            raise malformed(f"CONNACK has the flags {flags:#04x}, it must have none but session present (0x01)")
        code, at = read_byte(data, at, stop)
        reason_code = reason_codes.get(code)
        if reason_code is None:
            raise protocol_error(f"CONNACK has the code {code:#04x}, which it cannot have")
        if flags and code:
            raise protocol_error("CONNACK has session present together with a failure")
        properties = EMPTY
        if version is Version.V5:
            properties, at = read_properties(Place.CONNACK, data, at, stop)
        if at != stop:
            raise malformed(f"CONNACK has {stop - at} bytes too many")
        return Connack(bool(flags), reason_code, properties)

    return read


def write_connack(packet: Connack, version: Version) -> bytes:
    """Write a CONNACK. In MQTT 3.1.1 a reason without a return code becomes "server unavailable"."""
    flags, code = _SESSION_PRESENT if packet.session_present else 0, packet.reason_code
    if version is Version.V311:
        return framed(first_byte(PacketType.CONNACK), bytes((flags, _RETURN_CODE_OF.get(code, _OTHER_RETURN_CODE))))
    body = bytes((flags, code)) + write_properties(Place.CONNACK, packet.properties)
    return framed(first_byte(PacketType.CONNACK), body)


def read_disconnect(version: Version, sender: Side) -> Callable[[int, bytes, int, int], Disconnect]:
    """Make the reader of DISCONNECT for a version and a sender."""
    reason_codes = _allowed(PacketType.DISCONNECT, sender)
    place = Place.CLIENT_DISCONNECT if sender == "client" else Place.SERVER_DISCONNECT

    def read(_first: int, data: bytes, at: int, stop: int) -> Disconnect:
        if at == stop:
            return Disconnect()
        if version is Version.V311:
            raise malformed(f"DISCONNECT has {stop - at} bytes, in MQTT 3.1.1 it must have none")
        reason_code = reason_codes.get(data[at])
        if reason_code is None:
            # The peer is disconnecting, so no answer is sent.
            raise protocol_error(
                f"DISCONNECT of the {sender} has the reason code {data[at]:#04x}, which it cannot have",
                is_answerable=False,
            )
        properties, at = EMPTY, at + 1
        if at < stop:
            properties, at = read_properties(place, data, at, stop)
        if at != stop:
            raise malformed(f"DISCONNECT has {stop - at} bytes too many")
        return Disconnect(reason_code, properties)

    return read


def write_disconnect(packet: Disconnect, version: Version) -> bytes:
    """Write a DISCONNECT.

    Raises:
        ValueError: It has a reason other than normal, which MQTT 3.1.1 cannot express.
    """
    first, reason_code = first_byte(PacketType.DISCONNECT), packet.reason_code
    if version is Version.V311:
        if reason_code:
            raise ValueError(f"MQTT 3.1.1 cannot express {reason_code.name} in DISCONNECT: close the connection")
        return framed(first, b"")
    if is_empty(packet.properties):
        return framed(first, bytes((reason_code,)) if reason_code else b"")
    return framed(first, bytes((reason_code,)) + write_properties(Place.DISCONNECT, packet.properties))


def read_auth(sender: Side) -> Callable[[int, bytes, int, int], Auth]:
    """Make the reader of AUTH for a sender."""
    reason_codes = _allowed(PacketType.AUTH, sender)

    def read(_first: int, data: bytes, at: int, stop: int) -> Auth:
        code = data[at] if at < stop else ReasonCode.SUCCESS
        reason_code = reason_codes.get(code)
        if reason_code is None:
            raise protocol_error(f"AUTH of the {sender} has the reason code {code:#04x}, which it cannot have")
        if at == stop:
            return Auth(reason_code)
        properties, at = read_properties(Place.AUTH, data, at + 1, stop)
        if at != stop:
            raise malformed(f"AUTH has {stop - at} bytes too many")
        if properties.authentication_method is None:
            raise protocol_error("AUTH has no authentication method")
        return Auth(reason_code, properties)

    return read


def write_auth(packet: Auth, version: Version) -> bytes:
    """Write an AUTH.

    Raises:
        ValueError: The version is 3.1.1, which does not have it.
    """
    first = first_byte(PacketType.AUTH)
    if version is Version.V311:
        raise ValueError("MQTT 3.1.1 does not have AUTH")
    if not packet.reason_code and is_empty(packet.properties):
        return framed(first, b"")
    return framed(first, bytes((packet.reason_code,)) + write_properties(Place.AUTH, packet.properties))


def _allowed(packet_type: PacketType, sender: Side) -> dict[int, ReasonCode]:
    return {int(code): code for code in REASON_CODES[packet_type, sender]}
