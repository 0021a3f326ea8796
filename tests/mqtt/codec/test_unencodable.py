"""What cannot be said in bytes, or would say the opposite of what is meant, is refused by `encode`."""

from __future__ import annotations

import pytest

from broker_adapter.mqtt_codec import Packet, Properties, ReasonCode, Version, encode, encode_acknowledgements
from broker_adapter.mqtt_codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)

V311, V5 = Version.V311, Version.V5
TOO_LONG = "a" * 65_536


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (Publish(TOO_LONG), "has 65536 bytes"),
        (Publish("\ud800"), "surrogates not allowed"),
        (Publish("a", qos=3, packet_id=1), "QoS 3"),
        (Publish("a", qos=-1), "QoS -1"),
        (Publish("a", qos=1), "packet identifier 0"),
        (Publish("a", qos=2, packet_id=65_536), "packet identifier 65536"),
        (Publish("a", packet_id=1), "packet identifier 1"),
        (Publish("a", dup=True), "DUP flag"),
        (Publish("a", bytes(268_435_455)), "at most 268435455"),
        (Publish("a", properties=Properties(correlation_data=bytes(65_536))), "has 65536 bytes"),
        (Publish("a", properties=Properties(topic_alias=65_536)), "does not fit into 2 bytes"),
        (Publish("a", properties=Properties(payload_format_indicator=256)), "does not fit into 1 bytes"),
        (Publish("a", properties=Properties(subscription_identifiers=(268_435_456,))), "not a variable byte integer"),
        (Publish("a", properties=Properties(message_expiry_interval=-1)), "does not fit into 4 bytes"),
        (Puback(0), "packet identifier is 0"),
        (Puback(65_536), "packet identifier is 65536"),
        (Pubrec(0, ReasonCode.QUOTA_EXCEEDED), "packet identifier is 0"),
        (Subscribe(0, (SubscriptionRequest("a"),)), "packet identifier is 0"),
        (Subscribe(1, (), Properties(subscription_identifiers=(1, 2))), "may have subscription_identifiers once"),
        (Suback(65_536, ()), "packet identifier is 65536"),
        (Unsubscribe(1, (TOO_LONG,)), "has 65536 bytes"),
        (Connect(keep_alive_s=65_536), "does not fit into 2 bytes"),
        (Connect(will=Will("t", qos=3)), "QoS 3"),
        (Subscribe(1, (SubscriptionRequest("a", 3),)), "QoS 3"),
        (Subscribe(1, (SubscriptionRequest("a", retain_handling=4),)), "retain handling 4"),
        (Connect(version=V311), "cannot be written as V5"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(packet: Packet, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(packet, V5)


@pytest.mark.parametrize(
    "packet",
    [
        Puback(1, ReasonCode.NOT_AUTHORIZED),
        Pubrec(1, ReasonCode.QUOTA_EXCEEDED),
        Disconnect(ReasonCode.SERVER_BUSY),
        Disconnect(ReasonCode.DISCONNECT_WITH_WILL),
        Auth(),
    ],
)
def test_a_client_of_version_311_never_gets_success_for_a_failure(packet: Packet) -> None:
    with pytest.raises(ValueError, match=r"MQTT 3\.1\.1"):
        encode(packet, V311)


def test_version_311_continues_with_a_delivery_whose_identifier_was_not_found() -> None:
    assert encode(Pubrel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), V311).hex() == "62020001"
    assert encode(Pubcomp(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), V311).hex() == "70020001"
    assert encode(Puback(1, ReasonCode.NO_MATCHING_SUBSCRIBERS), V311).hex() == "40020001"


def test_properties_that_are_equal_to_none_are_none() -> None:
    assert encode(Puback(1, properties=Properties()), V5).hex() == "40020001"
    assert encode(Disconnect(properties=Properties()), V5).hex() == "e000"
    assert encode(Connack(properties=Properties()), V5).hex() == "2003000000"
    assert encode(Auth(properties=Properties()), V5).hex() == "f000"


@pytest.mark.parametrize("ids", [[0], [1, 65_536], [-1, 2]])
def test_many_acknowledgements_are_refused_if_one_of_them_is_impossible(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not from 1 to 65535"):
        encode_acknowledgements(Puback, ids)
