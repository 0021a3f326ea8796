"""What is refused, by known bytes: a row for each rule with its place in the standard, reason code and answer."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Properties, ReasonCode, Version, encode
from broker_adapter.mqtt_codec.packets import Connect
from tests.mqtt.codec.strategies import Sender

MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
V311, V5 = Version.V311, Version.V5


class Refused(NamedTuple):
    """Bytes that are refused, and why."""

    rule: str
    written: str
    reason_code: ReasonCode
    answer: str = ""


CONNECT_311: Final = [
    Refused("remaining length 0", "10 00", MALFORMED),
    Refused("no level", "10 06 0004 4d515454", MALFORMED),
    Refused("no flags", "10 07 0004 4d515454 04", MALFORMED),
    Refused("no keep alive", "10 09 0004 4d515454 04 02 00", MALFORMED),
    Refused("no client identifier", "10 0a 0004 4d515454 04 02 0000", MALFORMED),
    Refused("bytes after the payload", "10 0d 0004 4d515454 04 02 0000 0000 00", MALFORMED),
    Refused("reserved flag (3.1.2-3)", "10 0c 0004 4d515454 04 03 0000 0000", MALFORMED),
    Refused("will QoS without will (3.1.2-13)", "10 0c 0004 4d515454 04 0a 0000 0000", MALFORMED),
    Refused("will retain without will (3.1.2-15)", "10 0c 0004 4d515454 04 22 0000 0000", MALFORMED),
    Refused("will QoS 3 (3.1.2-14)", "10 11 0004 4d515454 04 1e 0000 0000 0001 74 0000", MALFORMED),
    Refused("password without user name (3.1.2-22)", "10 0f 0004 4d515454 04 42 0000 0000 0001 78", MALFORMED),
    Refused("will without message", "10 0f 0004 4d515454 04 06 0000 0000 0001 74", MALFORMED),
    Refused("will topic with a wildcard", "10 11 0004 4d515454 04 06 0000 0000 0001 23 0000", MALFORMED),
    Refused("will topic empty (4.7.3-1)", "10 10 0004 4d515454 04 06 0000 0000 0000 0000", PROTOCOL),
    Refused("user name not there", "10 0c 0004 4d515454 04 82 0000 0000", MALFORMED),
    Refused("password not there", "10 0e 0004 4d515454 04 c2 0000 0000 0000", MALFORMED),
    Refused(
        "no client identifier and no clean session (3.1.3-8)",
        "10 0c 0004 4d515454 04 00 0000 0000",
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        "20020002",
    ),
    Refused(
        "client identifier with U+0000",
        "10 0d 0004 4d515454 04 02 0000 0001 00",
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ),
]

CONNECT_5: Final = [
    Refused("reserved flag (3.1.2-3)", "10 0d 0004 4d515454 05 03 0000 00 0000", MALFORMED),
    Refused("will QoS 3 (3.1.2-12)", "10 13 0004 4d515454 05 1e 0000 00 0000 00 0001 74 0000", MALFORMED),
    Refused("no keep alive", "10 08 0004 4d515454 05 02", MALFORMED),
    Refused("no property length", "10 0a 0004 4d515454 05 02 0000", MALFORMED, "2003008100"),
    Refused("properties cut off", "10 0c 0004 4d515454 05 02 0000 03 11", MALFORMED, "2003008100"),
    Refused("property length too long", "10 0d 0004 4d515454 05 02 0000 ff 00 00", MALFORMED, "2003008100"),
    Refused("bytes after the payload", "10 0e 0004 4d515454 05 02 0000 00 0000 00", MALFORMED, "2003008100"),
    Refused("will properties not there", "10 0d 0004 4d515454 05 06 0000 00 0000", MALFORMED, "2003008100"),
    Refused(
        "will topic with a wildcard", "10 12 0004 4d515454 05 06 0000 00 0000 00 0001 2b 0000", MALFORMED, "2003008100"
    ),
    Refused("user name with a control character", "10 10 0004 4d515454 05 82 0000 00 0000 0001 1f", MALFORMED),
    Refused("user name not there (3.1.2-17)", "10 0d 0004 4d515454 05 82 0000 00 0000", MALFORMED),
    Refused("receive maximum 0", "10 10 0004 4d515454 05 02 0000 03 210000 0000", PROTOCOL, "2003008200"),
    Refused("maximum packet size 0", "10 12 0004 4d515454 05 02 0000 05 2700000000 0000", PROTOCOL, "2003008200"),
    Refused("request problem information 2", "10 0f 0004 4d515454 05 02 0000 02 1702 0000", PROTOCOL, "2003008200"),
    Refused("request response information 2", "10 0f 0004 4d515454 05 02 0000 02 1902 0000", PROTOCOL, "2003008200"),
    Refused("authentication data alone", "10 10 0004 4d515454 05 02 0000 03 160000 0000", PROTOCOL, "2003008200"),
    Refused(
        "client identifier with a control character",
        "10 0e 0004 4d515454 05 02 0000 00 0001 7f",
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        "2003008500",
    ),
    Refused(
        "client identifier with a surrogate",
        "10 10 0004 4d515454 05 02 0000 00 0003 eda080",
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        "2003008500",
    ),
]

FIRST: Final = [
    Refused("PINGREQ before CONNECT (3.1.0-1)", "c0 00", PROTOCOL),
    Refused("PUBLISH before CONNECT", "30 03 0001 61", PROTOCOL),
    Refused("another protocol altogether", "47", PROTOCOL),
    Refused("CONNECT with a flag", "11", PROTOCOL),
    Refused("packet type 0", "00", PROTOCOL),
    Refused("protocol name is another", "10 0b 0003 4d5154 04 02 0000 0000", PROTOCOL),
    Refused("protocol name is none", "10 08 0000 04 02 0000 0000", PROTOCOL),
    Refused(
        "the old name with a newer level",
        "10 0e 0006 4d5149736470 04 02 0000 0000",
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        "20020001",
    ),
    Refused("level 3", "10 0c 0004 4d515454 03 02 0000 0000", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "20020001"),
    Refused("level 6", "10 0d 0004 4d515454 06 02 0000 00 0000", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "2003008400"),
    Refused("remaining length without an end", "10 80808080", MALFORMED),
]

CLIENT_5: Final = [
    # Fixed header, section 2.1.
    Refused("packet type 0", "00", PROTOCOL, "e00182"),
    Refused("a second CONNECT (3.1.0-2)", "10 0d 0004 4d515454 05 02 0000 00 0000", PROTOCOL, "e00182"),
    Refused("CONNACK from a client", "20 03 00 00 00", PROTOCOL, "e00182"),
    Refused("SUBACK from a client", "90 04 0001 00 00", PROTOCOL, "e00182"),
    Refused("UNSUBACK from a client", "b0 04 0001 00 00", PROTOCOL, "e00182"),
    Refused("PINGRESP from a client", "d0 00", PROTOCOL, "e00182"),
    Refused("SUBACK with a flag", "91 04 0001 00 00", MALFORMED, "e00181"),
    Refused("AUTH that was not agreed upon (4.12.0-7)", "f0 07 18 05 15 0002 6d31", PROTOCOL, "e00182"),
    Refused("remaining length of five bytes", "30 8080808001", MALFORMED, "e00181"),
    Refused("remaining length longer than need be (1.5.5-1)", "c0 8000", MALFORMED, "e00181"),
    *(
        Refused(f"{name} with a flag (2.1.3-1)", f"{first:02x} 02 0001", MALFORMED, "e00181")
        for name, first in (("PUBACK", 0x41), ("PUBREC", 0x58), ("PUBCOMP", 0x72))
    ),
    Refused("PUBREL without its flag (3.6.1-1)", "60 02 0001", PROTOCOL, "e00182"),
    Refused("PUBREL with a flag more (3.6.1-1)", "6a 02 0001", PROTOCOL, "e00182"),
    Refused("SUBSCRIBE without its flag (3.8.1-1)", "80 07 0001 00 0001 61 00", MALFORMED, "e00181"),
    Refused("UNSUBSCRIBE with a flag more (3.10.1-1)", "a3 06 0001 00 0001 61", MALFORMED, "e00181"),
    Refused("PINGREQ with a flag", "c1 00", MALFORMED, "e00181"),
    Refused("DISCONNECT with a flag (3.14.1-1)", "e8 00", PROTOCOL, "e00182"),
    # PUBLISH, section 3.3.
    Refused("PUBLISH of QoS 3 (3.3.1-4)", "36 06 0001 61 0001 00", MALFORMED, "e00181"),
    Refused("PUBLISH of QoS 0 with DUP (3.3.1-2)", "38 04 0001 61 00", MALFORMED, "e00181"),
    Refused("PUBLISH without topic length", "30 01 00", MALFORMED, "e00181"),
    Refused("PUBLISH with its topic cut off", "30 04 0003 6161", MALFORMED, "e00181"),
    Refused("PUBLISH without packet identifier", "32 04 0001 61 00", MALFORMED, "e00181"),
    Refused("PUBLISH with packet identifier 0 (2.2.1-3)", "32 06 0001 61 0000 00", PROTOCOL, "e00182"),
    Refused("PUBLISH without property length", "30 03 0001 61", MALFORMED, "e00181"),
    Refused("PUBLISH with properties cut off", "30 05 0001 61 02 01", MALFORMED, "e00181"),
    Refused("PUBLISH with a value beyond the properties", "30 09 0001 61 02 02 00000001", MALFORMED, "e00181"),
    Refused("topic with + (3.3.2-2)", "30 04 0001 2b 00", MALFORMED, "e00181"),
    Refused("topic with #", "30 06 0003 612f23 00", MALFORMED, "e00181"),
    Refused("topic with U+0000 (1.5.4-2)", "30 04 0001 00 00", MALFORMED, "e00181"),
    Refused("topic with U+001F", "30 04 0001 1f 00", MALFORMED, "e00181"),
    Refused("topic with U+009F", "30 05 0002 c29f 00", MALFORMED, "e00181"),
    Refused("topic with a surrogate (1.5.4-1)", "30 06 0003 eda080 00", MALFORMED, "e00181"),
    Refused("topic with an overlong character", "30 05 0002 c080 00", MALFORMED, "e00181"),
    Refused("topic with half a character", "30 04 0001 c3 00", MALFORMED, "e00181"),
    Refused("topic empty, no alias", "30 03 0000 00", PROTOCOL, "e00182"),
    Refused("topic alias 0 (3.3.2-8)", "30 07 0001 61 03 23 0000", ReasonCode.TOPIC_ALIAS_INVALID, "e00194"),
    Refused("payload format 2", "30 06 0001 61 02 01 02", PROTOCOL, "e00182"),
    Refused("response topic with a wildcard (3.3.2-14)", "30 08 0001 61 04 08 0001 23", MALFORMED, "e00181"),
    Refused("response topic empty", "30 07 0001 61 03 08 0000", PROTOCOL, "e00182"),
    Refused("subscription identifier from a client (3.3.4-6)", "30 06 0001 61 02 0b 01", PROTOCOL, "e00182"),
    Refused("user property without value", "30 08 0001 61 04 26 0001 61", MALFORMED, "e00181"),
    Refused("user property that is not UTF-8", "30 0a 0001 61 06 26 0001 ff 0000", MALFORMED, "e00181"),
    Refused("content type with U+0000", "30 08 0001 61 04 03 0001 00", MALFORMED, "e00181"),
    # Acknowledgements, sections 3.4 to 3.7.
    Refused("PUBACK without packet identifier", "40 01 00", MALFORMED, "e00181"),
    Refused("PUBACK with nothing", "40 00", MALFORMED, "e00181"),
    Refused("PUBACK with packet identifier 0", "40 02 0000", PROTOCOL, "e00182"),
    Refused("PUBACK with a reason of PUBREL", "40 03 0001 92", PROTOCOL, "e00182"),
    Refused("PUBREC with an unknown reason", "50 03 0001 ff", PROTOCOL, "e00182"),
    Refused("PUBREL with a reason of PUBACK", "62 03 0001 10", PROTOCOL, "e00182"),
    Refused("PUBCOMP with a reason of PUBACK", "70 03 0001 80", PROTOCOL, "e00182"),
    Refused("PUBCOMP with bytes too many", "70 05 0001 00 00 00", MALFORMED, "e00181"),
    Refused("PUBREC with a property length too great", "50 04 0001 00 01", MALFORMED, "e00181"),
    # SUBSCRIBE and UNSUBSCRIBE, sections 3.8 and 3.10.
    Refused("SUBSCRIBE without packet identifier", "82 01 00", MALFORMED, "e00181"),
    Refused("SUBSCRIBE with packet identifier 0 (2.2.1-3)", "82 07 0000 00 0001 61 00", PROTOCOL, "e00182"),
    Refused("SUBSCRIBE without properties", "82 02 0001", MALFORMED, "e00181"),
    Refused("SUBSCRIBE without topic filter (3.8.3-2)", "82 03 0001 00", PROTOCOL, "e00182"),
    Refused("SUBSCRIBE without options", "82 06 0001 00 0001 61", MALFORMED, "e00181"),
    Refused("maximum QoS 3", "82 07 0001 00 0001 61 03", MALFORMED, "e00181"),
    Refused("retain handling 3", "82 07 0001 00 0001 61 30", PROTOCOL, "e00182"),
    Refused("reserved options (3.8.3-5)", "82 07 0001 00 0001 61 40", MALFORMED, "e00181"),
    Refused(
        "no local on a shared subscription (3.8.3-4)", "82 10 0001 00 000a 2473686172652f672f61 04", PROTOCOL, "e00182"
    ),
    Refused("filter empty (4.7.3-1)", "82 06 0001 00 0000 00", MALFORMED, "e00181"),
    Refused("filter a+ (4.7.1-2)", "82 08 0001 00 0002 612b 00", MALFORMED, "e00181"),
    Refused("filter +a", "82 08 0001 00 0002 2b61 00", MALFORMED, "e00181"),
    Refused("filter a# (4.7.1-1)", "82 08 0001 00 0002 6123 00", MALFORMED, "e00181"),
    Refused("filter #/a", "82 09 0001 00 0003 232f61 00", MALFORMED, "e00181"),
    Refused("filter ##", "82 08 0001 00 0002 2323 00", MALFORMED, "e00181"),
    Refused("filter with U+0000", "82 07 0001 00 0001 00 00", MALFORMED, "e00181"),
    Refused("filter with U+007F", "82 07 0001 00 0001 7f 00", MALFORMED, "e00181"),
    Refused("$share (4.8.2-1)", "82 0c 0001 00 0006 247368617265 00", MALFORMED, "e00181"),
    Refused("$share/g", "82 0e 0001 00 0008 2473686172652f67 00", MALFORMED, "e00181"),
    Refused("$share/g/ (4.7.3-1)", "82 0f 0001 00 0009 2473686172652f672f 00", MALFORMED, "e00181"),
    Refused("$share//a", "82 0f 0001 00 0009 2473686172652f2f61 00", MALFORMED, "e00181"),
    Refused("$share/+/a (4.8.2-2)", "82 10 0001 00 000a 2473686172652f2b2f61 00", MALFORMED, "e00181"),
    Refused("$share/g+/a (4.8.2-2)", "82 11 0001 00 000b 2473686172652f672b2f61 00", MALFORMED, "e00181"),
    Refused("subscription identifier 0", "82 09 0001 02 0b 00 0001 61 00", PROTOCOL, "e00182"),
    Refused("subscription identifier twice", "82 0b 0001 04 0b01 0b02 0001 61 00", PROTOCOL, "e00182"),
    Refused("subscription identifier of five bytes", "82 0d 0001 06 0b 8080808001 0001 61 00", MALFORMED, "e00181"),
    Refused("UNSUBSCRIBE without topic filter (3.10.3-2)", "a2 03 0001 00", PROTOCOL, "e00182"),
    Refused("UNSUBSCRIBE with half a filter", "a2 06 0001 00 0002 61", MALFORMED, "e00181"),
    Refused("UNSUBSCRIBE with packet identifier 0", "a2 06 0000 00 0001 61", PROTOCOL, "e00182"),
    Refused("UNSUBSCRIBE with a filter a+", "a2 07 0001 00 0002 612b", MALFORMED, "e00181"),
    # The rest.
    Refused("PINGREQ with a body", "c0 01 00", MALFORMED, "e00181"),
    Refused("DISCONNECT with a server's reason", "e0 01 8b", PROTOCOL),
    Refused("DISCONNECT with a reason that is none", "e0 01 01", PROTOCOL),
    Refused("DISCONNECT with bytes too many", "e0 03 00 00 00", MALFORMED, "e00181"),
]

CLIENT_311: Final = [
    Refused("AUTH", "f0 00", PROTOCOL),
    Refused("packet type 0", "00", PROTOCOL),
    Refused("CONNACK from a client", "20 02 00 00", PROTOCOL),
    Refused("PUBACK with a reason code", "40 03 0001 00", MALFORMED),
    Refused("PUBREL with a reason code", "62 03 0001 00", MALFORMED),
    Refused("PUBREL without its flag (3.6.1-1)", "60 02 0001", PROTOCOL),
    Refused("PUBLISH with packet identifier 0", "32 05 0001 61 0000", PROTOCOL),
    Refused("PUBLISH without topic (4.7.3-1)", "30 02 0000", PROTOCOL),
    Refused("topic with + (3.3.2-2)", "30 03 0001 2b", MALFORMED),
    Refused("SUBSCRIBE without topic filter (3.8.3-3)", "82 02 0001", PROTOCOL),
    Refused("requested QoS 3 (3.8.3-4)", "82 06 0001 0001 61 03", MALFORMED),
    Refused("an option of MQTT 5", "82 06 0001 0001 61 04", MALFORMED),
    Refused("reserved bits of the requested QoS", "82 06 0001 0001 61 80", MALFORMED),
    Refused("UNSUBSCRIBE without topic filter (3.10.3-2)", "a2 02 0001", PROTOCOL),
    Refused("DISCONNECT with a reason code", "e0 01 00", MALFORMED),
    Refused("PINGREQ with a flag", "c8 00", MALFORMED),
]

SERVER_5: Final = [
    Refused("CONNECT from a server", "10 0d 0004 4d515454 05 02 0000 00 0000", PROTOCOL, "e00182"),
    Refused("SUBSCRIBE from a server", "82 07 0001 00 0001 61 00", PROTOCOL, "e00182"),
    Refused("UNSUBSCRIBE from a server", "a2 06 0001 00 0001 61", PROTOCOL, "e00182"),
    Refused("PINGREQ from a server", "c0 00", PROTOCOL, "e00182"),
    Refused("CONNACK with a flag", "21 03 00 00 00", MALFORMED, "e00181"),
    Refused("CONNACK with reserved acknowledge flags (3.2.2-1)", "20 03 02 00 00", MALFORMED, "e00181"),
    Refused("CONNACK that refuses a session that is present (3.2.2-6)", "20 03 01 80 00", PROTOCOL, "e00182"),
    Refused("CONNACK with a code that is none", "20 03 00 01 00", PROTOCOL, "e00182"),
    Refused("CONNACK without properties", "20 02 00 00", MALFORMED, "e00181"),
    Refused("CONNACK with bytes too many", "20 04 00 00 00 00", MALFORMED, "e00181"),
    Refused("CONNACK with maximum QoS 2", "20 05 00 00 02 24 02", PROTOCOL, "e00182"),
    Refused("CONNACK with receive maximum 0", "20 06 00 00 03 21 0000", PROTOCOL, "e00182"),
    Refused("CONNACK with retain available 2", "20 05 00 00 02 25 02", PROTOCOL, "e00182"),
    Refused("PUBLISH with subscription identifier 0", "30 06 0001 61 02 0b 00", PROTOCOL, "e00182"),
    Refused("SUBACK without reason codes", "90 03 0001 00", PROTOCOL, "e00182"),
    Refused("SUBACK with a code that is none", "90 04 0001 00 03", PROTOCOL, "e00182"),
    Refused("UNSUBACK with a code of SUBACK", "b0 04 0001 00 01", PROTOCOL, "e00182"),
    Refused("DISCONNECT with a client's reason", "e0 01 04", PROTOCOL),
    Refused("session expiry from a server (3.14.2-2)", "e0 07 00 05 11 00000001", PROTOCOL, "e00182"),
    Refused("AUTH with a client's reason", "f0 06 19 04 15 0001 6d", PROTOCOL, "e00182"),
    Refused("AUTH without method", "f0 02 18 00", PROTOCOL, "e00182"),
    Refused("AUTH without properties", "f0 01 18", MALFORMED, "e00181"),
]

SERVER_311: Final = [
    Refused("CONNACK with the return code 6 (3.2.2-6)", "20 02 00 06", PROTOCOL),
    Refused("CONNACK that refuses a session that is present (3.2.2-4)", "20 02 01 05", PROTOCOL),
    Refused("SUBACK with a return code of MQTT 5 (3.9.3-2)", "90 03 0001 87", PROTOCOL),
    Refused("UNSUBACK with a reason code", "b0 03 0001 00", MALFORMED),
    Refused("DISCONNECT from a server", "e0 00", PROTOCOL),
]

AUTHENTICATED: Final = [
    Refused("AUTH with a server's reason", "f0 06 00 04 15 0001 6d", PROTOCOL, "e00182"),
    Refused("AUTH in its short form, which is a server's", "f0 00", PROTOCOL, "e00182"),
    Refused("AUTH with a flag (3.15.1-1)", "f1 06 19 04 15 0001 6d", MALFORMED, "e00181"),
    Refused("AUTH without method", "f0 02 19 00", PROTOCOL, "e00182"),
    Refused("AUTH with bytes too many", "f0 07 19 04 15 0001 6d 00", MALFORMED, "e00181"),
]


def refusal(decoder: Decoder, written: str) -> MqttProtocolError:
    with pytest.raises(MqttProtocolError) as caught:
        decoder.receive(bytes.fromhex(written))
    return caught.value


def named(rows: list[Refused]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[f"{row.rule}: {row.written[:40]}" for row in rows])


def check(decoder: Decoder, row: Refused) -> None:
    error = refusal(decoder, row.written)
    assert (error.reason_code.name, error.answer.hex()) == (row.reason_code.name, row.answer)
    assert error.packets == []
    assert decoder.is_empty


def test_a_client_of_mqtt_3_1_is_taken_as_one_of_3_1_1() -> None:
    decoder = Decoder()
    [connect] = decoder.receive(bytes.fromhex("10 0e 0006 4d5149736470 03 02 0000 0000"))
    assert isinstance(connect, Connect)
    assert connect.version is decoder.version is Version.V311


@named([*FIRST, *CONNECT_311, *CONNECT_5])
def test_at_the_beginning(row: Refused) -> None:
    check(Decoder(), row)


@named(CLIENT_5)
def test_from_a_client_of_version_5(row: Refused) -> None:
    decoder = Decoder()
    decoder.receive(encode(Connect(), V5))
    check(decoder, row)


@named(AUTHENTICATED)
def test_from_a_client_that_authenticates(row: Refused) -> None:
    decoder = Decoder()
    decoder.receive(encode(Connect(properties=Properties(authentication_method="m")), V5))
    check(decoder, row)


@named(CLIENT_311)
def test_from_a_client_of_version_311(row: Refused) -> None:
    decoder = Decoder()
    decoder.receive(encode(Connect(version=V311), V311))
    check(decoder, row)


@pytest.mark.parametrize(("version", "rows"), [(V5, SERVER_5), (V311, SERVER_311)])
def test_from_a_server(version: Version, rows: list[Refused]) -> None:
    for row in rows:
        check(Decoder(of="server", version=version), row)


@pytest.mark.parametrize("sender", ["client", "server"])
@pytest.mark.parametrize("version", [V311, V5])
def test_every_first_byte_is_known_or_refused_before_the_body_is_there(sender: Sender, version: Version) -> None:
    waiting = set()
    for first in range(256):
        decoder = Decoder(of=sender, version=version)
        try:
            assert decoder.receive(bytes((first, 100))) == []
        except MqttProtocolError:
            continue
        waiting.add(first)
    publish = {0x30, 0x31, *range(0x32, 0x36), *range(0x3A, 0x3E)}
    both = publish | {0x40, 0x50, 0x62, 0x70}
    own = {0x82, 0xA2, 0xC0, 0xE0} if sender == "client" else {0x20, 0x90, 0xB0, 0xD0}
    version_5 = {0xE0, 0xF0} if version is V5 else set()
    assert waiting == both | own | version_5


def test_a_message_names_the_thing_what_was_found_and_what_is_allowed() -> None:
    error = refusal(Decoder(version=V5), "82 07 0001 00 0001 61 30")
    assert str(error) == "SUBSCRIBE has retain handling 3, it must be 0, 1 or 2"


def test_a_message_does_not_repeat_all_that_a_peer_sent() -> None:
    topic_filter = b"a+" + b"x" * 65_000
    body = b"\0\1\0" + len(topic_filter).to_bytes(2, "big") + topic_filter + b"\0"
    length = bytes((len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14))
    assert len(str(refusal(Decoder(version=V5), (b"\x82" + length + body).hex()))) < 200


def test_a_version_must_be_given_for_what_a_server_sends() -> None:
    with pytest.raises(ValueError, match="it must be given for packets of a server"):
        Decoder(of="server")
