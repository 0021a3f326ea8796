"""Reads and writes the properties of a packet with their length, by the table in `mqtt_codec.property_table`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from broker_adapter.mqtt_codec.errors import MqttProtocolError, malformed, protocol_error
from broker_adapter.mqtt_codec.primitives import read_variable, write_variable
from broker_adapter.mqtt_codec.properties import EMPTY, Properties
from broker_adapter.mqtt_codec.property_table import (
    MALFORMED_WHERE_MISPLACED,
    PROPERTIES,
    Place,
    Property,
)
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from broker_adapter.mqtt_codec.text import topic_name

MAX_USER_PROPERTIES: Final = 1_000
"""Most user properties of a packet. The standard has no limit but the size of the packet: several hundred thousand,
which take so long to read that other clients have to wait."""

_USER_PROPERTIES: Final = "user_properties"


def read_properties(place: Place, data: bytes, at: int, stop: int) -> tuple[Properties, int]:
    """Read the property length and the properties, in any order, of those that `place` may have."""
    if at < stop and data[at] == 0:
        return EMPTY, at + 1
    length, at = read_variable(data, at, stop)
    end = at + length
    if end > stop:
        raise malformed(f"property length is {length}, the packet has {stop - at} bytes left")
    values: dict[str, Any] = {}
    known = _READERS[place]
    while at < end:
        identifier, at = data[at], at + 1
        if identifier > 0x7F:
            identifier, at = read_variable(data, at - 1, end)
        reader = known.get(identifier)
        if reader is None:
            raise malformed(f"property {identifier:#04x} is not defined")
        value, at = reader.read(data, at, end)
        if reader.check is not None:
            reader.check(value)
        name = reader.name
        if name not in values:
            # A list while it is being read: a packet may have very many.
            values[name] = [value] if reader.is_tuple else value
        elif reader.repeats:
            values[name].append(value)
            if name == _USER_PROPERTIES and len(values[name]) > MAX_USER_PROPERTIES:
                raise MqttProtocolError(
                    ReasonCode.QUOTA_EXCEEDED,
                    f"{_shown(place)} has more than {MAX_USER_PROPERTIES} user properties, which is the most allowed",
                )
        else:
            raise protocol_error(f"property {name} occurs twice, it may be in {_shown(place)} once")
    if "authentication_data" in values and "authentication_method" not in values:
        raise protocol_error("property authentication_data occurs without authentication_method")
    for name in _TUPLES:
        if name in values:
            values[name] = tuple(values[name])
    return Properties(**values), end


@attrs.frozen(slots=True)
class _Reader:
    """How a property is read in one place, looked up once."""

    name: str
    read: Callable[[bytes, int, int], tuple[Any, int]]
    check: Callable[[Any], None] | None
    is_tuple: bool
    repeats: bool


def _reader_of(declared: Property, place: Place) -> _Reader:
    repeats = bool(place & declared.repeats_in)
    return _Reader(declared.name, declared.type.read, _check_of(declared, place), declared.is_tuple, repeats)


def _check_of(declared: Property, place: Place) -> Callable[[Any], None] | None:
    def refuse(value: object) -> None:
        misplaced = malformed if place & MALFORMED_WHERE_MISPLACED else protocol_error
        raise misplaced(f"property {declared.name} is not allowed in {_shown(place)}")

    def check_limits(value: int) -> None:
        least, most = declared.limits or (value, value)
        if not least <= value <= most:
            raise MqttProtocolError(
                declared.limits_code, f"property {declared.name} is {value}, it must be from {least} to {most}"
            )

    def check_topic(value: str) -> None:
        if not topic_name(value.encode()):
            raise protocol_error(f"property {declared.name} is an empty topic name")

    if not place & declared.places:
        return refuse
    if declared.is_topic:
        return check_topic
    return check_limits if declared.limits is not None else None


def _shown(place: Place) -> str:
    return (place.name or "").replace("_", " ")


def is_empty(properties: Properties) -> bool:
    """Whether there are none: then the standard allows to leave out the whole section in some packets."""
    return properties is EMPTY or properties == EMPTY


def write_properties(place: Place, properties: Properties) -> bytes:
    """Write the properties with their length.

    Raises:
        ValueError: A property is not allowed there, or a value does not fit into its type.
    """
    if properties is EMPTY:
        return b"\0"
    written = _WRITERS[place](properties)
    return write_variable(len(written)) + written


def properties_writer(place: Place, *, leave_out: str = "") -> Callable[[Properties], bytes]:
    """Make the writer of all properties of a packet but ``leave_out``, without their length; see `write_properties`."""
    allowed = [declared for declared in PROPERTIES if place & declared.places and declared.name != leave_out]
    writers = [writer_of(declared, place) for declared in allowed]
    get = _getter(declared.name for declared in allowed)
    get_others = _getter(declared.name for declared in PROPERTIES if not place & declared.places)
    no_others = get_others(EMPTY)

    def write_all(properties: Properties) -> bytes:
        if get_others(properties) != no_others:
            raise ValueError(f"{_shown(place)} has a property that is not allowed there: {properties}")
        written = b""
        for value, write in zip(get(properties), writers, strict=True):
            # Most are absent.
            if value is not None and value != ():
                written += write(value)
        return written

    return write_all


def _getter(names: Iterable[str]) -> Callable[[Properties], tuple[Any, ...]]:
    """Reads several properties at once."""
    names = tuple(names)
    get = operator.attrgetter(*names)
    return get if len(names) > 1 else lambda properties: (get(properties),)


def writer_of(declared: Property, place: Place) -> Callable[[Any], bytes]:
    """The writer of one property with its identifier, for code that builds a property section by itself."""
    head, write = write_variable(declared.identifier), declared.type.write
    if not declared.is_tuple:
        return lambda value: head + write(value)
    is_single = not place & declared.repeats_in

    def write_all(values: tuple[Any, ...]) -> bytes:
        if is_single and len(values) > 1:
            raise ValueError(f"{_shown(place)} may have {declared.name} once, not {len(values)} times")
        return b"".join([head + write(value) for value in values])

    return write_all


# A writer does not know who sends a PUBLISH or a DISCONNECT: the places of both sides are joined here.
_WRITTEN_PLACES: Final = (
    *(place for place in Place if not place & (Place.PUBLISH | Place.DISCONNECT)),
    Place.PUBLISH,
    Place.DISCONNECT,
)
_TUPLES: Final = tuple(declared.name for declared in PROPERTIES if declared.is_tuple)
_READERS: Final = {
    place: {declared.identifier: _reader_of(declared, place) for declared in PROPERTIES} for place in Place
}
_WRITERS: Final = {place: properties_writer(place) for place in _WRITTEN_PLACES}
