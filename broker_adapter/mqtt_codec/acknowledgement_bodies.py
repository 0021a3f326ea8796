"""PUBACK, PUBREC, PUBREL and PUBCOMP after the fixed header: the four have the same layout."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import attrs

from broker_adapter.mqtt_codec.errors import malformed, protocol_error
from broker_adapter.mqtt_codec.fixed_header import framed
from broker_adapter.mqtt_codec.packet_types import REASON_CODES, PacketType, first_byte
from broker_adapter.mqtt_codec.packets import Puback, Pubcomp, Pubrec, Pubrel, Version
from broker_adapter.mqtt_codec.primitives import FOUR_BYTES, MAX_TWO_BYTES, TWO_BYTES, truncated
from broker_adapter.mqtt_codec.properties import EMPTY
from broker_adapter.mqtt_codec.property_section import is_empty, read_properties, write_properties
from broker_adapter.mqtt_codec.property_table import Place

Acknowledgement = Puback | Pubrec | Pubrel | Pubcomp
A = TypeVar("A", Puback, Pubrec, Pubrel, Pubcomp)


@attrs.frozen(slots=True)
class _Kind:
    packet_type: PacketType
    place: Place


_KINDS: Final[dict[type[Acknowledgement], _Kind]] = {
    Puback: _Kind(PacketType.PUBACK, Place.PUBACK),
    Pubrec: _Kind(PacketType.PUBREC, Place.PUBREC),
    Pubrel: _Kind(PacketType.PUBREL, Place.PUBREL),
    Pubcomp: _Kind(PacketType.PUBCOMP, Place.PUBCOMP),
}
_SHORT_BYTES: Final = TWO_BYTES.size
"""A packet with only the packet identifier means success; MQTT 3.1.1 has no other form."""

# The whole short packet as one number, with the first byte and the remaining length in the upper half.
_SHORT_HEAD: Final = {cls: first_byte(kind.packet_type) << 24 | _SHORT_BYTES << 16 for cls, kind in _KINDS.items()}


def read_acknowledgement(cls: type[A], version: Version) -> Callable[[int, bytes, int, int], A]:
    """Make the reader of one of the four packets for a version."""
    kind = _KINDS[cls]
    name = kind.packet_type.name
    reason_codes = {int(code): code for code in REASON_CODES[kind.packet_type, "client"]}

    def read(_first: int, data: bytes, at: int, stop: int) -> A:
        length = stop - at
        if length < _SHORT_BYTES:
            raise truncated(f"the packet identifier of {name}", at, stop)
        packet_id = data[at] << 8 | data[at + 1]
        if not packet_id:
            raise protocol_error(f"{name} has packet identifier 0, it must be from 1 to {MAX_TWO_BYTES}")
        if length == _SHORT_BYTES:
            return cls(packet_id)
        if version is Version.V311:
            raise malformed(f"{name} has {length} bytes, in MQTT 3.1.1 it must have {_SHORT_BYTES}")
        reason_code = reason_codes.get(data[at + 2])
        if reason_code is None:
            raise protocol_error(f"{name} has the reason code {data[at + 2]:#04x}, which it cannot have")
        properties, at = EMPTY, at + 3
        if at < stop:
            properties, at = read_properties(kind.place, data, at, stop)
        if at != stop:
            raise malformed(f"{name} has {stop - at} bytes too many")
        return cls(packet_id, reason_code, properties)

    return read


def write_acknowledgement(packet: Acknowledgement, version: Version) -> bytes:
    """Write one of the four packets.

    Raises:
        ValueError: A PUBACK or PUBREC reports a failure. MQTT 3.1.1 cannot express it; the packet would mean success.
    """
    cls, reason_code = type(packet), packet.reason_code
    kind = _KINDS[cls]
    if version is Version.V311 and reason_code >= 0x80 and cls in (Puback, Pubrec):
        raise ValueError(f"MQTT 3.1.1 cannot express {reason_code.name} in {kind.packet_type.name}: do not send it")
    if version is Version.V311 or (not reason_code and is_empty(packet.properties)):
        return FOUR_BYTES.pack(_SHORT_HEAD[cls] | _checked(packet.packet_id))
    body = TWO_BYTES.pack(_checked(packet.packet_id)) + bytes((reason_code,))
    if not is_empty(packet.properties):
        body += write_properties(kind.place, packet.properties)
    return framed(first_byte(kind.packet_type), body)


def encode_acknowledgements(cls: type[Acknowledgement], packet_ids: Sequence[int]) -> bytes:
    """Encode one acknowledgement of success for each packet identifier; the bytes are the same in both versions."""
    head = _SHORT_HEAD[cls]
    if packet_ids and not (min(packet_ids) > 0 and max(packet_ids) <= MAX_TWO_BYTES):
        raise ValueError(f"packet identifiers go from {min(packet_ids)} to {max(packet_ids)}, not from 1 to 65535")
    return struct.pack(f">{len(packet_ids)}I", *[head | packet_id for packet_id in packet_ids])


def encode_pubacks(packet_ids: Sequence[int]) -> bytes:
    """Encode one PUBACK of success for each packet identifier."""
    return encode_acknowledgements(Puback, packet_ids)


def _checked(packet_id: int) -> int:
    if not 1 <= packet_id <= MAX_TWO_BYTES:
        raise ValueError(f"packet identifier is {packet_id}, it must be from 1 to {MAX_TWO_BYTES}")
    return packet_id
