"""The first bytes of every packet: type and flags, then the length of what follows (section 2.1 of the standard)."""

from __future__ import annotations

from typing import Final

from broker_adapter.mqtt_codec.errors import MqttProtocolError, malformed, protocol_error
from broker_adapter.mqtt_codec.packet_types import FIRST_BYTES, PacketType, Side, why_not
from broker_adapter.mqtt_codec.packets import Version
from broker_adapter.mqtt_codec.primitives import MAX_VARIABLE, MAX_VARIABLE_BYTES, read_variable, write_variable
from broker_adapter.mqtt_codec.reason_codes import ReasonCode

_RESERVED_TYPE: Final = 0


def fixed_header(first: int, length: int) -> bytes:
    """Write the fixed header of a packet that has ``length`` bytes after it.

    Raises:
        ValueError: The length is more than a packet can have.
    """
    if length > MAX_VARIABLE:
        raise ValueError(f"packet has {length} bytes after its fixed header, it must have at most {MAX_VARIABLE}")
    return bytes((first,)) + write_variable(length)


def framed(first: int, body: bytes) -> bytes:
    """Put the fixed header before the rest of a packet; see `fixed_header`."""
    return fixed_header(first, len(body)) + body


def read_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the remaining length; returns it and the position behind it, or (0, 0) if more bytes are needed."""
    try:
        return read_variable(data, at, end)
    except MqttProtocolError:
        if end - at < MAX_VARIABLE_BYTES and all(byte > 0x7F for byte in data[at:end]):
            return 0, 0
        raise


def too_large(size_bytes: int, limit_bytes: int) -> MqttProtocolError:
    """A packet is longer than the Maximum Packet Size that this side announced."""
    return MqttProtocolError(
        ReasonCode.PACKET_TOO_LARGE, f"packet has {size_bytes} bytes, it must have at most {limit_bytes}"
    )


def is_no_type(first: int) -> bool:
    """Whether no packet of any version begins with this byte."""
    return first >> 4 == _RESERVED_TYPE


def refusal(first: int, sender: Side, version: Version | None, *, authenticates: bool) -> MqttProtocolError:
    """The error of a packet from ``sender`` that begins with this byte.

    Args:
        version: None before CONNECT.
        authenticates: AUTH packets are allowed: CONNECT named an authentication method.
    """
    if version is None:
        return protocol_error(
            f"first packet begins with {first:#04x}, it must be a CONNECT (0x10)", is_answerable=False
        )
    if is_no_type(first):
        return protocol_error("packet type is 0, it must be from 1 to 15")
    packet_type, flags = PacketType(first >> 4), first & 0x0F
    why = why_not(packet_type, sender, version, authenticates=authenticates)
    if why and packet_type in _REFUSED_WHATEVER_FLAGS:
        return protocol_error(why)
    if packet_type is PacketType.PUBLISH:
        what = "QoS 3, it must be 0, 1 or 2" if flags & 0b0110 == 0b0110 else "the DUP flag with QoS 0"
        return malformed(f"PUBLISH has {what}")
    expected = FIRST_BYTES[packet_type].flags
    if flags != expected:
        fault = protocol_error if packet_type in _FLAGS_BREAK_THE_PROTOCOL else malformed
        return fault(f"{packet_type.name} has the flags {flags:#06b}, they must be {expected:#06b}")
    return protocol_error(why)


# These two are refused before their flags are checked: CONNACK only opens a connection, and AUTH must be agreed upon.
# For all other packets wrong flags are reported first.
_REFUSED_WHATEVER_FLAGS: Final = (PacketType.CONNACK, PacketType.AUTH)

# By the standard wrong flags are malformed; for these packets common brokers answer 0x82, and clients expect that.
_FLAGS_BREAK_THE_PROTOCOL: Final = (PacketType.PUBREL, PacketType.DISCONNECT)
