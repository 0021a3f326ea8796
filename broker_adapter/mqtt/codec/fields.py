"""The data types that packets are made of (section 1.5 of the standard), read and written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from broker_adapter.mqtt.codec.errors import MqttProtocolError, malformed, protocol_error
from broker_adapter.mqtt.codec.packets import PacketType
from broker_adapter.mqtt.codec.properties import EMPTY, Properties
from broker_adapter.mqtt.codec.property_table import BY_IDENTIFIER, PROPERTIES, Property, Wire

_CONTROL: Final = re.compile(r"[\x01-\x1f\x7f-\x9f]")

# The standard calls a property in the wrong packet malformed (2.2.2.2) and data that a packet must not have a protocol
# error (1.2); brokers in use tell them apart like this.
_TAKE_HARDLY_ANY: Final = (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)

LARGEST_VARIABLE: Final = 268_435_455
LARGEST_TEXT_BYTES: Final = 65_535


class Reader:
    """Reads fields one after the other from a packet's body.

    Args:
        data: Bytes that hold the body.
        at: Where it begins.
        end: Where it ends; what does not fit before it is malformed.
    """

    __slots__ = ("_data", "at", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self.end = end

    def is_at_end(self) -> bool:
        """Whether everything was read."""
        return self.at >= self.end

    def _advance(self, size: int, what: str) -> int:
        at = self.at
        if at + size > self.end:
            raise malformed(f"the packet ends inside {what}")
        self.at = at + size
        return at

    def byte(self, what: str) -> int:
        """One byte."""
        return self._data[self._advance(1, what)]

    def two_bytes(self, what: str) -> int:
        """A number of two bytes."""
        at = self._advance(2, what)
        return self._data[at] << 8 | self._data[at + 1]

    def four_bytes(self, what: str) -> int:
        """A number of four bytes."""
        at = self._advance(4, what)
        return int.from_bytes(self._data[at : at + 4], "big")

    def variable(self, what: str) -> int:
        """A number of one to four bytes, in the fewest that it needs."""
        value = shift = 0
        while True:
            byte = self.byte(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise malformed(f"{what} is longer than its number needs")
                return value
            shift += 7
            if shift > 21:
                raise malformed(f"{what} has more than four bytes")

    def binary(self, what: str) -> bytes:
        """Bytes behind their size."""
        size = self.two_bytes(what)
        at = self._advance(size, what)
        return self._data[at : at + size]

    def text(self, what: str) -> str:
        """UTF-8 without U+0000, behind its size."""
        return text_of(self.binary(what), what)

    def name(self, what: str) -> str:
        """A text without control characters."""
        return name_of(self.binary(what), what)

    def rest(self) -> bytes:
        """Everything up to the end."""
        at, self.at = self.at, self.end
        return self._data[at : self.end]

    def packet_id(self) -> int:
        """A packet identifier, which is not 0."""
        packet_id = self.two_bytes("the packet identifier")
        if not packet_id:
            raise malformed("the packet identifier is 0")
        return packet_id

    def properties(self, packet: int) -> Properties:
        """The properties of a packet of this type."""
        size = self.variable("the property length")
        end = self.at + size
        if end > self.end:
            raise malformed("the properties end behind the packet")
        if not size:
            return EMPTY
        values: dict[str, object] = {}
        outer, self.end = self.end, end
        while self.at < end:
            self._property(packet, values)
        self.end = outer
        return Properties(**values)  # type: ignore[arg-type]

    def _property(self, packet: int, values: dict[str, object]) -> None:
        identifier = self.variable("a property identifier")
        found = BY_IDENTIFIER.get(identifier)
        if found is None:
            raise malformed(f"there is no property 0x{identifier:02x}")
        value = self._value(found)
        if packet not in found.packets:
            fault = malformed if packet in _TAKE_HARDLY_ANY else protocol_error
            raise fault(f"the property {found.name} is not allowed in this packet")
        if found.allows is not None and not found.allows(value):
            raise MqttProtocolError(found.fault, f"the property {found.name} must not be {value!r}")
        if found.repeats:
            values[found.name] = (*values.get(found.name, ()), value)  # type: ignore[misc]
        elif found.name in values:
            raise protocol_error(f"the property {found.name} is there twice")
        else:
            values[found.name] = value

    def _value(self, wanted: Property) -> object:
        return _READERS[wanted.wire](self, wanted.name)

    def pair(self, what: str) -> tuple[str, str]:
        """Two texts."""
        return self.text(what), self.text(what)


_READERS: Final = {
    Wire.BYTE: Reader.byte,
    Wire.TWO_BYTES: Reader.two_bytes,
    Wire.FOUR_BYTES: Reader.four_bytes,
    Wire.VARIABLE: Reader.variable,
    Wire.TEXT: Reader.text,
    Wire.BINARY: Reader.binary,
    Wire.PAIR: Reader.pair,
}


def text_of(data: bytes, what: str) -> str:
    """UTF-8 as the standard allows it: no surrogates, no U+0000."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"{what} is no UTF-8: {error}") from error
    if "\0" in text:
        raise malformed(f"{what} has the character U+0000")
    return text


def name_of(data: bytes, what: str) -> str:
    """UTF-8 of a topic or of who a client is. The standard lets a receiver refuse control characters; shards do."""
    text = text_of(data, what)
    if found := _CONTROL.search(text):
        raise malformed(f"{what} has the control character {found[0]!a}")
    return text


def variable(value: int) -> bytes:
    """A number up to `LARGEST_VARIABLE`, in one to four bytes."""
    if value < 0x80:
        return _SMALL[value]
    if not value <= LARGEST_VARIABLE:
        raise ValueError(f"{value} does not fit into a variable byte integer, which ends at {LARGEST_VARIABLE}")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = tuple(bytes((value,)) for value in range(0x80))


def binary(data: bytes) -> bytes:
    """Bytes behind their size."""
    if len(data) > LARGEST_TEXT_BYTES:
        raise ValueError(f"{len(data)} bytes do not fit behind a size of two bytes, which ends at {LARGEST_TEXT_BYTES}")
    return len(data).to_bytes(2, "big") + data


def text(value: str) -> bytes:
    """UTF-8 behind its size."""
    return binary(value.encode())


def pair(value: tuple[str, str]) -> bytes:
    """Two texts."""
    return text(value[0]) + text(value[1])


_WRITERS: Final[dict[Wire, Callable[[Any], bytes]]] = {
    Wire.BYTE: lambda value: value.to_bytes(1, "big"),
    Wire.TWO_BYTES: lambda value: value.to_bytes(2, "big"),
    Wire.FOUR_BYTES: lambda value: value.to_bytes(4, "big"),
    Wire.VARIABLE: variable,
    Wire.TEXT: text,
    Wire.BINARY: binary,
    Wire.PAIR: pair,
}


def properties(values: Properties) -> bytes:
    """Properties behind their size. Which packet may have them is the caller's to know."""
    if values is EMPTY:
        return b"\0"
    parts: list[bytes] = []
    for one in PROPERTIES:
        value = getattr(values, one.name)
        write = _WRITERS[one.wire]
        if one.repeats:
            for each in value:
                parts += (_SMALL[one.identifier], write(each))
        elif value is not None:
            parts += (_SMALL[one.identifier], write(value))
    body = b"".join(parts)
    return variable(len(body)) + body
