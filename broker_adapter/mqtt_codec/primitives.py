"""The data types of MQTT (section 1.5 of the standard), each read and written only here.

Readers take the bytes of a chunk, the position at which to begin, and the end of the packet (or of a part of it); they
return the value and the position behind it. The rules of topics and of other text are in `mqtt_codec.text`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from broker_adapter.mqtt_codec.errors import MqttProtocolError, malformed

BYTE: Final = Struct(">B")
TWO_BYTES: Final = Struct(">H")
FOUR_BYTES: Final = Struct(">I")

MAX_TWO_BYTES: Final = 0xFFFF
MAX_VARIABLE: Final = 268_435_455
"""Largest variable byte integer: the longest remaining length, property length and subscription identifier."""
MAX_VARIABLE_BYTES: Final = 4


def truncated(what: str, at: int, stop: int) -> MqttProtocolError:
    """The packet, or a length inside it, ends before the value does."""
    return malformed(f"{what} is cut off: {max(stop - at, 0)} bytes are left for it")


def read_byte(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """One unsigned byte."""
    if at >= stop:
        raise truncated("a byte", at, stop)
    return data[at], at + 1


def read_two_bytes(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """A two byte integer."""
    if at + 2 > stop:
        raise truncated("a two byte integer", at, stop)
    return data[at] << 8 | data[at + 1], at + 2


def read_four_bytes(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """A four byte integer."""
    if at + 4 > stop:
        raise truncated("a four byte integer", at, stop)
    return FOUR_BYTES.unpack_from(data, at)[0], at + 4


def read_variable(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """A variable byte integer: up to four bytes of seven bits each, the lowest first."""
    value = 0
    for index in range(MAX_VARIABLE_BYTES):
        if at + index >= stop:
            raise truncated("a variable byte integer", at, stop)
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if byte == 0 and index > 0:
                raise malformed(f"variable byte integer {value} has {index + 1} bytes, it must have as few as possible")
            return value, at + index + 1
    raise malformed(f"variable byte integer continues after byte {MAX_VARIABLE_BYTES}, it must end there")


def read_binary(data: bytes, at: int, stop: int) -> tuple[bytes, int]:
    """Binary data: a two byte length and as many bytes."""
    start = at + 2
    if start > stop:
        raise truncated("the length of a string or binary value", at, stop)
    end = start + (data[at] << 8 | data[at + 1])
    if end > stop:
        raise malformed(f"a string or binary value of {end - start} bytes is cut off after {stop - start}")
    return data[start:end], end


def read_string(data: bytes, at: int, stop: int) -> tuple[str, int]:
    """A UTF-8 encoded string."""
    raw, at = read_binary(data, at, stop)
    return utf8(raw), at


def read_string_pair(data: bytes, at: int, stop: int) -> tuple[tuple[str, str], int]:
    """Two UTF-8 encoded strings, a name and a value."""
    name, at = read_string(data, at, stop)
    value, at = read_string(data, at, stop)
    return (name, value), at


def utf8(raw: bytes) -> str:
    """Decode text as the standard allows it: well-formed, without surrogates and without U+0000."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"string is not UTF-8: {error.reason} at byte {error.start}") from None
    if "\0" in text:
        raise malformed(f"string has U+0000 at character {text.index(chr(0))}, which is not allowed")
    return text


def write_byte(value: int) -> bytes:
    """See `read_byte`."""
    return _packed(BYTE, value)


def write_two_bytes(value: int) -> bytes:
    """See `read_two_bytes`."""
    return _packed(TWO_BYTES, value)


def write_four_bytes(value: int) -> bytes:
    """See `read_four_bytes`."""
    return _packed(FOUR_BYTES, value)


def _packed(layout: Struct, value: int) -> bytes:
    if not 0 <= value < 1 << 8 * layout.size:
        raise ValueError(f"{value} does not fit into {layout.size} bytes")
    return layout.pack(value)


def write_variable(value: int) -> bytes:
    """See `read_variable`."""
    if not 0 <= value <= MAX_VARIABLE:
        raise ValueError(f"{value} is not a variable byte integer, which goes from 0 to {MAX_VARIABLE}")
    if value < 0x80:
        return _ONE_BYTE[value]
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


_ONE_BYTE: Final = tuple(bytes([value]) for value in range(0x80))


def write_binary(value: bytes) -> bytes:
    """See `read_binary`."""
    if len(value) > MAX_TWO_BYTES:
        raise ValueError(f"a string or binary value has {len(value)} bytes, it must have at most {MAX_TWO_BYTES}")
    return TWO_BYTES.pack(len(value)) + value


def write_string(value: str) -> bytes:
    """See `read_string`."""
    return write_binary(value.encode())


def write_string_pair(value: tuple[str, str]) -> bytes:
    """See `read_string_pair`."""
    return write_string(value[0]) + write_string(value[1])
