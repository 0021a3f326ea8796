"""Packets and their bytes, written by hand from the two standards, the fields of a packet apart by spaces."""

from __future__ import annotations

from typing import Final, NamedTuple

from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)

V311, V5 = Version.V311, Version.V5
CLIENT, SERVER = ("client",), ("server",)
BOTH = ("client", "server")


class Sample(NamedTuple):
    """One packet; ``senders`` may send it."""

    version: Version
    senders: tuple[str, ...]
    packet: Packet
    written: str

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.written)


_CONNECTS: Final = [
    Sample(V311, CLIENT, Connect("", version=V311), "10 0c  0004 4d515454 04 02 0000  0000"),
    Sample(V311, CLIENT, Connect("p", False, 10, version=V311), "10 0d  0004 4d515454 04 00 000a  0001 70"),
    Sample(
        V311,
        CLIENT,
        Connect("p", True, 65535, "ü", b"\0\xff", Will("w/t", b"gone", 2, True), version=V311),
        "10 20  0004 4d515454 04 f6 ffff  0001 70  0003 772f74  0004 676f6e65  0002 c3bc  0002 00ff",
    ),
    Sample(V311, CLIENT, Connect("p", username="", version=V311), "10 0f  0004 4d515454 04 82 0000  0001 70  0000"),
    Sample(V5, CLIENT, Connect(""), "10 0d  0004 4d515454 05 02 0000 00  0000"),
    Sample(V5, CLIENT, Connect("", password=b"x"), "10 10  0004 4d515454 05 42 0000 00  0000  0001 78"),
    Sample(
        V5,
        CLIENT,
        Connect(
            "p",
            False,
            10,
            properties=Properties(
                session_expiry_interval=0xFFFFFFFF,
                authentication_method="m",
                authentication_data=b"\1",
                request_problem_information=0,
                request_response_information=1,
                receive_maximum=20,
                topic_alias_maximum=0,
                user_properties=(("a", "b"), ("a", "c")),
                maximum_packet_size=256,
            ),
        ),
        "10 38  0004 4d515454 05 00 000a"
        "2a 11 ffffffff  15 0001 6d  16 0001 01  17 00  19 01  21 0014  22 0000"
        "   26 0001 61 0001 62  26 0001 61 0001 63  27 00000100"
        "0001 70",
    ),
    Sample(
        V5,
        CLIENT,
        Connect(
            "p",
            will=Will(
                "t",
                b"",
                1,
                False,
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=60,
                    content_type="c",
                    response_topic="r",
                    correlation_data=b"\xff",
                    will_delay_interval=5,
                    user_properties=(("", ""),),
                ),
            ),
        ),
        "10 31  0004 4d515454 05 0e 0000 00  0001 70"
        "1d 01 01  02 0000003c  03 0001 63  08 0001 72  09 0001 ff  18 00000005  26 0000 0000"
        "0001 74  0000",
    ),
]

_CONNACKS: Final = [
    Sample(V311, SERVER, Connack(), "20 02 00 00"),
    Sample(V311, SERVER, Connack(True), "20 02 01 00"),
    Sample(V311, SERVER, Connack(reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION), "20 02 00 01"),
    Sample(V311, SERVER, Connack(reason_code=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID), "20 02 00 02"),
    Sample(V311, SERVER, Connack(reason_code=ReasonCode.SERVER_UNAVAILABLE), "20 02 00 03"),
    Sample(V311, SERVER, Connack(reason_code=ReasonCode.BAD_USER_NAME_OR_PASSWORD), "20 02 00 04"),
    Sample(V311, SERVER, Connack(reason_code=ReasonCode.NOT_AUTHORIZED), "20 02 00 05"),
    Sample(V5, SERVER, Connack(), "20 03 00 00 00"),
    Sample(V5, SERVER, Connack(reason_code=ReasonCode.BANNED), "20 03 00 8a 00"),
    Sample(
        V5,
        SERVER,
        Connack(
            True,
            properties=Properties(
                session_expiry_interval=1,
                assigned_client_identifier="i",
                server_keep_alive=30,
                authentication_method="m",
                authentication_data=b"",
                response_information="r",
                server_reference="s",
                reason_string="why",
                receive_maximum=65535,
                topic_alias_maximum=10,
                maximum_qos=1,
                retain_available=0,
                user_properties=(("k", "v"),),
                maximum_packet_size=0xFFFFFFFF,
                wildcard_subscription_available=1,
                subscription_identifiers_available=0,
                shared_subscription_available=1,
            ),
        ),
        "20 40  01 00"
        "3d 11 00000001  12 0001 69  13 001e  15 0001 6d  16 0000  1a 0001 72  1c 0001 73  1f 0003 776879"
        "   21 ffff  22 000a  24 01  25 00  26 0001 6b 0001 76  27 ffffffff  28 01  29 00  2a 01",
    ),
]

_PUBLISHES: Final = [
    Sample(V311, BOTH, Publish("a/b", b"hi"), "30 07  0003 612f62  6869"),
    Sample(V311, BOTH, Publish("a", retain=True), "31 03  0001 61"),
    Sample(V311, BOTH, Publish("a", b"\0", 1, packet_id=1), "32 06  0001 61  0001  00"),
    Sample(V311, BOTH, Publish("é", b"", 2, True, True, 65535), "3d 06  0002 c3a9  ffff"),
    Sample(V311, BOTH, Publish("a", bytes(125)), "30 8001  0001 61" + "00" * 125),
    Sample(V5, BOTH, Publish("a/b", b"hi"), "30 08  0003 612f62  00  6869"),
    Sample(V5, BOTH, Publish("a", b"\0", 1, dup=True, packet_id=258), "3a 07  0001 61  0102  00  00"),
    Sample(V5, BOTH, Publish("", b"x", properties=Properties(topic_alias=5)), "30 07  0000  03 23 0005  78"),
    Sample(V5, BOTH, Publish("a", bytes(123)), "30 7f  0001 61  00" + "00" * 123),
    Sample(V5, BOTH, Publish("a", bytes(16380)), "30 808001  0001 61  00" + "00" * 16380),
    Sample(
        V5,
        BOTH,
        Publish(
            "a",
            b"p",
            2,
            packet_id=1,
            properties=Properties(
                payload_format_indicator=0,
                message_expiry_interval=1,
                content_type="",
                response_topic="r/s",
                correlation_data=b"",
                topic_alias=65535,
                user_properties=(("b", ""), ("a", "ü"), ("b", "")),
            ),
        ),
        "34 31  0001 61  0001"
        "2a 01 00  02 00000001  03 0000  08 0003 722f73  09 0000  23 ffff"
        "   26 0001 62 0000  26 0001 61 0002 c3bc  26 0001 62 0000"
        "70",
    ),
    Sample(
        V5,
        SERVER,
        Publish("a", properties=Properties(subscription_identifiers=(268_435_455, 1, 128))),
        "30 0e  0001 61  0a 0b ffffff7f  0b 01  0b 8001",
    ),
]

_ACKNOWLEDGEMENTS: Final = [
    sample
    for cls, first, failure in (
        (Puback, "40", ReasonCode.QUOTA_EXCEEDED),
        (Pubrec, "50", ReasonCode.NOT_AUTHORIZED),
        (Pubrel, "62", ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
        (Pubcomp, "70", ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
    )
    for sample in (
        Sample(V311, BOTH, cls(1), f"{first} 02 0001"),
        Sample(V5, BOTH, cls(65535), f"{first} 02 ffff"),
        Sample(V5, BOTH, cls(2, failure), f"{first} 03 0002 {failure:02x}"),
        Sample(
            V5,
            BOTH,
            cls(2, failure, Properties(reason_string="no", user_properties=(("a", "b"),))),
            f"{first} 10 0002 {failure:02x}  0c 1f 0002 6e6f  26 0001 61 0001 62",
        ),
        Sample(V5, BOTH, cls(2, properties=Properties(reason_string="")), f"{first} 07 0002 00  03 1f 0000"),
    )
]

_SUBSCRIPTIONS: Final = [
    Sample(
        V311,
        CLIENT,
        Subscribe(10, (SubscriptionRequest("a/+", 1), SubscriptionRequest("#", 2))),
        "82 0c  000a  0003 612f2b 01  0001 23 02",
    ),
    Sample(V5, CLIENT, Subscribe(10, (SubscriptionRequest("a"),)), "82 07  000a 00  0001 61 00"),
    Sample(
        V5,
        CLIENT,
        Subscribe(
            10,
            (
                SubscriptionRequest("a", 2, True, True, 2),
                SubscriptionRequest("$share/g/+/x", 1, False, True, 1),
            ),
            Properties(subscription_identifiers=(128,), user_properties=(("k", "v"),)),
        ),
        "82 20  000a  0a 0b 8001  26 0001 6b 0001 76  0001 61 2e  000c 2473686172652f672f2b2f78 19",
    ),
    Sample(
        V311,
        SERVER,
        Suback(10, (ReasonCode.GRANTED_QOS_0, ReasonCode.GRANTED_QOS_2, ReasonCode.UNSPECIFIED_ERROR)),
        "90 05 000a 00 02 80",
    ),
    Sample(
        V5,
        SERVER,
        Suback(10, (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED), Properties(reason_string="r")),
        "90 09 000a  04 1f 0001 72  01 87",
    ),
    Sample(V311, CLIENT, Unsubscribe(10, ("a", "b/#")), "a2 0a  000a  0001 61  0003 622f23"),
    Sample(
        V5,
        CLIENT,
        Unsubscribe(10, ("a",), Properties(user_properties=(("k", "v"),))),
        "a2 0d  000a  07 26 0001 6b 0001 76  0001 61",
    ),
    Sample(V311, SERVER, Unsuback(10), "b0 02 000a"),
    Sample(
        V5,
        SERVER,
        Unsuback(10, (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)),
        "b0 05 000a 00 00 11",
    ),
]

_OTHERS: Final = [
    Sample(V311, CLIENT, Pingreq(), "c0 00"),
    Sample(V5, CLIENT, Pingreq(), "c0 00"),
    Sample(V311, SERVER, Pingresp(), "d0 00"),
    Sample(V5, SERVER, Pingresp(), "d0 00"),
    Sample(V311, CLIENT, Disconnect(), "e0 00"),
    Sample(V5, BOTH, Disconnect(), "e0 00"),
    Sample(V5, CLIENT, Disconnect(ReasonCode.DISCONNECT_WITH_WILL), "e0 01 04"),
    Sample(
        V5,
        CLIENT,
        Disconnect(properties=Properties(session_expiry_interval=7, reason_string="bye")),
        "e0 0d 00  0b 11 00000007  1f 0003 627965",
    ),
    Sample(
        V5,
        SERVER,
        Disconnect(ReasonCode.SERVER_MOVED, Properties(server_reference="s")),
        "e0 06 9d  04 1c 0001 73",
    ),
    Sample(V5, SERVER, Auth(), "f0 00"),
    Sample(
        V5,
        BOTH,
        Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="m", authentication_data=b"d")),
        "f0 0a 18  08 15 0001 6d  16 0001 64",
    ),
    Sample(
        V5,
        CLIENT,
        Auth(
            ReasonCode.REAUTHENTICATE,
            Properties(authentication_method="m", reason_string="r", user_properties=(("a", "b"),)),
        ),
        "f0 11 19  0f 15 0001 6d  1f 0001 72  26 0001 61 0001 62",
    ),
]

SAMPLES: Final = [*_CONNECTS, *_CONNACKS, *_PUBLISHES, *_ACKNOWLEDGEMENTS, *_SUBSCRIPTIONS, *_OTHERS]
"""Every packet of both versions, every property, every form that there is."""
