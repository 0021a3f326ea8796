"""Each property in each packet: allowed, repeated or refused as table 2-4 of the standard has it, written out again."""

from __future__ import annotations

import copy
from typing import Final, NamedTuple

import attrs
import pytest

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import Connect, Will
from tests.mqtt.codec.strategies import Sender

MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR


class Place(NamedTuple):
    """A packet around its properties; the name has who sends it where both may."""

    name: str
    sender: Sender
    first: int
    before: str
    after: str = ""


PLACES: Final = [
    Place("CONNECT", "client", 0x10, "0004 4d515454 05 02 0000", "0000"),
    Place("will", "client", 0x10, "0004 4d515454 05 06 0000 00 0000", "0001 74 0000"),
    Place("CONNACK", "server", 0x20, "00 00"),
    Place("PUBLISH of a client", "client", 0x30, "0001 61"),
    Place("PUBLISH of a server", "server", 0x30, "0001 61"),
    Place("PUBACK", "client", 0x40, "0001 00"),
    Place("PUBREC", "client", 0x50, "0001 00"),
    Place("PUBREL", "client", 0x62, "0001 00"),
    Place("PUBCOMP", "client", 0x70, "0001 00"),
    Place("SUBSCRIBE", "client", 0x82, "0001", "0001 61 00"),
    Place("SUBACK", "server", 0x90, "0001", "00"),
    Place("UNSUBSCRIBE", "client", 0xA2, "0001", "0001 61"),
    Place("UNSUBACK", "server", 0xB0, "0001", "00"),
    Place("DISCONNECT of a client", "client", 0xE0, "00"),
    Place("DISCONNECT of a server", "server", 0xE0, "00"),
    Place("AUTH", "client", 0xF0, "18"),
]

_PUBLISH: Final = {"PUBLISH of a client", "PUBLISH of a server"}
_DISCONNECT: Final = {"DISCONNECT of a client", "DISCONNECT of a server"}
_MESSAGE: Final = _PUBLISH | {"will"}
_BOTH_ENDS: Final = {"CONNECT", "CONNACK"}
_ANSWERS: Final = {"CONNACK", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBACK", "UNSUBACK", "AUTH"} | _DISCONNECT


class Known(NamedTuple):
    """A property: its name here, a value as bytes and as found, where it may be."""

    name: str
    written: str
    value: object
    places: set[str]


KNOWN: Final = [
    Known("payload_format_indicator", "01 01", 1, _MESSAGE),
    Known("message_expiry_interval", "02 00000102", 258, _MESSAGE),
    Known("content_type", "03 0001 63", "c", _MESSAGE),
    Known("response_topic", "08 0001 72", "r", _MESSAGE),
    Known("correlation_data", "09 0001 ff", b"\xff", _MESSAGE),
    Known("subscription_identifiers", "0b 8001", (128,), {"PUBLISH of a server", "SUBSCRIBE"}),
    Known("session_expiry_interval", "11 00000102", 258, _BOTH_ENDS | {"DISCONNECT of a client"}),
    Known("assigned_client_identifier", "12 0001 69", "i", {"CONNACK"}),
    Known("server_keep_alive", "13 0102", 258, {"CONNACK"}),
    Known("authentication_method", "15 0001 6d", "m", _BOTH_ENDS | {"AUTH"}),
    Known("authentication_data", "16 0001 64", b"d", _BOTH_ENDS | {"AUTH"}),
    Known("request_problem_information", "17 00", 0, {"CONNECT"}),
    Known("will_delay_interval", "18 00000102", 258, {"will"}),
    Known("request_response_information", "19 01", 1, {"CONNECT"}),
    Known("response_information", "1a 0001 72", "r", {"CONNACK"}),
    # The standard lets only the server send it in DISCONNECT; brokers in use take it from clients as well.
    Known("server_reference", "1c 0001 73", "s", {"CONNACK"} | _DISCONNECT),
    Known("reason_string", "1f 0001 72", "r", _ANSWERS),
    Known("receive_maximum", "21 0102", 258, _BOTH_ENDS),
    Known("topic_alias_maximum", "22 0000", 0, _BOTH_ENDS),
    Known("topic_alias", "23 0001", 1, _PUBLISH),
    Known("maximum_qos", "24 00", 0, {"CONNACK"}),
    Known("retain_available", "25 01", 1, {"CONNACK"}),
    Known("user_properties", "26 0001 61 0000", (("a", ""),), {place.name for place in PLACES}),
    Known("maximum_packet_size", "27 00000001", 1, _BOTH_ENDS),
    Known("wildcard_subscription_available", "28 00", 0, {"CONNACK"}),
    Known("subscription_identifiers_available", "29 00", 0, {"CONNACK"}),
    Known("shared_subscription_available", "2a 00", 0, {"CONNACK"}),
]

UNKNOWN: Final = sorted({*range(0x80)} - {int(known.written[:2], 16) for known in KNOWN})


def packet_with(place: Place, properties: bytes) -> bytes:
    body = bytes.fromhex(place.before) + bytes((len(properties),)) + properties + bytes.fromhex(place.after)
    return bytes((place.first, len(body))) + body


def decode(place: Place, properties: bytes) -> Packet:
    version = None if place.first == 0x10 else Version.V5
    [packet] = Decoder(of=place.sender, version=version).receive(packet_with(place, properties))
    return packet


def properties_in(place: Place, packet: Packet) -> Properties:
    if place.name == "will":
        assert isinstance(packet, Connect)
        assert packet.will is not None
        return packet.will.properties
    properties = packet.properties  # type: ignore[union-attr]
    assert isinstance(properties, Properties)
    return properties


def needed_by(known: Known | None, place: Place) -> bytes:
    """An authentication method, where the packet must have one."""
    is_data = known is not None and known.name == "authentication_data" and place.name in known.places
    is_needed = place.name == "AUTH" or is_data
    has_it = known is not None and known.name == "authentication_method"
    return bytes.fromhex("15 0001 6d") if is_needed and not has_it else b""


each_place = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)


def test_all_properties_are_here() -> None:
    assert [known.name for known in sorted(KNOWN, key=lambda known: int(known.written[:2], 16))] == [
        known.name for known in KNOWN
    ]
    assert {known.name for known in KNOWN} == set(Properties.__struct_fields__)


@each_place
def test_a_property_is_read_where_it_may_be(place: Place) -> None:
    for known in KNOWN:
        if place.name not in known.places:
            continue
        needed = needed_by(known, place)
        packet = decode(place, needed + bytes.fromhex(known.written))
        assert getattr(properties_in(place, packet), known.name) == known.value
        if not needed:
            written = encode(packet, Version.V5)
            assert bytes.fromhex(known.written) in written
            assert decode(place, bytes.fromhex(known.written)) == packet


@each_place
def test_a_property_is_refused_where_it_may_not_be(place: Place) -> None:
    expected = MALFORMED if place.name in {"SUBSCRIBE", "UNSUBSCRIBE"} else PROTOCOL
    for known in KNOWN:
        if place.name in known.places:
            continue
        with pytest.raises(MqttProtocolError, match=known.name) as caught:
            decode(place, needed_by(known, place) + bytes.fromhex(known.written))
        assert caught.value.reason_code is expected


@each_place
def test_a_property_is_there_once_if_it_may_not_repeat(place: Place) -> None:
    for known in KNOWN:
        if place.name not in known.places:
            continue
        twice = needed_by(known, place) + bytes.fromhex(known.written) * 2
        if known.name == "user_properties" or (
            known.name == "subscription_identifiers" and place.name == "PUBLISH of a server"
        ):
            assert getattr(properties_in(place, decode(place, twice)), known.name) == known.value * 2  # type: ignore[operator]
            continue
        with pytest.raises(MqttProtocolError, match="occurs twice") as caught:
            decode(place, twice)
        assert caught.value.reason_code is PROTOCOL


@each_place
def test_a_property_that_is_cut_off_is_malformed_wherever_it_is(place: Place) -> None:
    for known in KNOWN:
        written = bytes.fromhex(known.written)
        for size in range(1, len(written)):
            with pytest.raises(MqttProtocolError, match="cut off") as caught:
                decode(place, needed_by(known, place) + written[:size])
            assert caught.value.reason_code is MALFORMED


@each_place
def test_an_unknown_property_is_malformed(place: Place) -> None:
    for identifier in [bytes((number,)) for number in UNKNOWN] + [b"\x80\x01", b"\x80\x02", b"\xff\xff\xff\x7f"]:
        with pytest.raises(MqttProtocolError, match="is not defined") as caught:
            decode(place, identifier + b"\1")
        assert caught.value.reason_code is MALFORMED


@each_place
def test_an_identifier_longer_than_need_be_is_malformed(place: Place) -> None:
    for identifier in (b"\x81\x00", b"\xa6\x80\x00", b"\x80\x80\x80\x80\x01"):
        with pytest.raises(MqttProtocolError, match="variable byte integer") as caught:
            decode(place, identifier + b"\1")
        assert caught.value.reason_code is MALFORMED


@each_place
def test_encode_refuses_a_property_that_may_not_be_there(place: Place) -> None:
    # Who sends a PUBLISH or a DISCONNECT is not known when it is encoded.
    places = {place.name}
    places |= _PUBLISH if place.name in _PUBLISH else _DISCONNECT if place.name in _DISCONNECT else set()
    sound = decode(place, needed_by(None, place))
    for known in KNOWN:
        if known.places & places:
            continue
        properties = Properties(**{known.name: known.value})  # type: ignore[arg-type]
        if place.name == "will":
            assert isinstance(sound, Connect)
            packet: Packet = attrs.evolve(sound, will=Will("t", properties=properties))
        else:
            packet = copy.copy(sound)
            packet.properties = properties  # type: ignore[union-attr]
        with pytest.raises(ValueError, match=f"not allowed there.*{known.name}"):
            encode(packet, Version.V5)
