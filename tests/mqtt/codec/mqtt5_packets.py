"""Our packets as those of `mqtt5`, an independent implementation of MQTT 5 that the codec is compared with.

It does not distinguish a value that was not sent from its default, so two of our packets may be one of its.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import mqtt5

from broker_adapter.mqtt_codec import Packet, Properties
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
    Unsuback,
    Unsubscribe,
    Will,
)

# Names of properties where they differ from ours.
_NAMES: Final = {
    "assigned_client_identifier": "assigned_client_id",
    "maximum_packet_size": "max_packet_size",
    "maximum_qos": "max_qos",
    "reason_string": "reason_str",
    "receive_maximum": "receive_max",
    "request_problem_information": "request_problem_info",
    "request_response_information": "request_response_info",
    "response_information": "response_info",
    "subscription_identifiers_available": "subscription_id_available",
    "topic_alias_maximum": "topic_alias_max",
}
_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "maximum_qos": mqtt5.QoS,
    "request_problem_information": bool,
    "request_response_information": bool,
    "retain_available": bool,
    "shared_subscription_available": bool,
    "subscription_identifiers_available": bool,
    "wildcard_subscription_available": bool,
    "user_properties": list,
}


def _given(properties: Properties) -> dict[str, Any]:
    """The properties that were sent, but for subscription identifiers, as keyword arguments."""
    found = {}
    for name in Properties.__struct_fields__:
        value = getattr(properties, name)
        if value is None or value == () or name == "subscription_identifiers":
            continue
        found[_NAMES.get(name, name)] = _CONVERSIONS.get(name, lambda value: value)(value)
    return found


def _will(will: Will | None) -> mqtt5.Will | None:
    if will is None:
        return None
    return mqtt5.Will(
        will.topic, payload=will.payload, qos=mqtt5.QoS(will.qos), retain=will.retain, **_given(will.properties)
    )


def _connect(packet: Connect) -> mqtt5.ConnectPacket:
    return mqtt5.ConnectPacket(
        packet.client_id,
        username=packet.username,
        password=packet.password,
        clean_start=packet.clean_start,
        will=_will(packet.will),
        keep_alive=packet.keep_alive_s,
        **_given(packet.properties),
    )


def _connack(packet: Connack) -> mqtt5.ConnAckPacket:
    return mqtt5.ConnAckPacket(
        session_present=packet.session_present,
        reason_code=mqtt5.ConnAckReasonCode(int(packet.reason_code)),
        **_given(packet.properties),
    )


def _publish(packet: Publish) -> mqtt5.PublishPacket:
    return mqtt5.PublishPacket(
        packet.topic,
        packet.payload,
        qos=mqtt5.QoS(packet.qos),
        retain=packet.retain,
        packet_id=packet.packet_id or None,
        duplicate=packet.dup,
        subscription_ids=list(packet.properties.subscription_identifiers),
        **_given(packet.properties),
    )


def _acknowledgement(made: Any, codes: Any) -> Callable[[Puback | Pubrec | Pubrel | Pubcomp], Any]:
    return lambda packet: made(
        packet.packet_id, reason_code=codes(int(packet.reason_code)), **_given(packet.properties)
    )


def _subscribe(packet: Subscribe) -> mqtt5.SubscribePacket:
    identifiers = packet.properties.subscription_identifiers
    return mqtt5.SubscribePacket(
        packet.packet_id,
        [
            mqtt5.TopicFilter(
                wanted.topic_filter,
                max_qos=mqtt5.QoS(wanted.qos),
                no_local=wanted.no_local,
                retain_as_published=wanted.retain_as_published,
                retain_handling=mqtt5.RetainHandling(wanted.retain_handling),
            )
            for wanted in packet.subscriptions
        ],
        subscription_id=identifiers[0] if identifiers else None,
        **_given(packet.properties),
    )


def _answer(made: Any, codes: Any) -> Callable[[Suback | Unsuback], Any]:
    return lambda packet: made(
        packet.packet_id, [codes(int(code)) for code in packet.reason_codes], **_given(packet.properties)
    )


def _unsubscribe(packet: Unsubscribe) -> mqtt5.UnsubscribePacket:
    return mqtt5.UnsubscribePacket(packet.packet_id, list(packet.topic_filters), **_given(packet.properties))


def _ending(made: Any, codes: Any) -> Callable[[Disconnect | Auth], Any]:
    return lambda packet: made(reason_code=codes(int(packet.reason_code)), **_given(packet.properties))


_AS_THEIRS: Final[dict[type, Callable[[Any], Any]]] = {
    Connect: _connect,
    Connack: _connack,
    Publish: _publish,
    Puback: _acknowledgement(mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    Pubrec: _acknowledgement(mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    Pubrel: _acknowledgement(mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    Pubcomp: _acknowledgement(mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
    Subscribe: _subscribe,
    Suback: _answer(mqtt5.SubAckPacket, mqtt5.SubAckReasonCode),
    Unsubscribe: _unsubscribe,
    Unsuback: _answer(mqtt5.UnsubAckPacket, mqtt5.UnsubAckReasonCode),
    Pingreq: lambda _packet: mqtt5.PingReqPacket(),
    Pingresp: lambda _packet: mqtt5.PingRespPacket(),
    Disconnect: _ending(mqtt5.DisconnectPacket, mqtt5.DisconnectReasonCode),
    Auth: _ending(mqtt5.AuthPacket, mqtt5.AuthReasonCode),
}


def as_theirs(packet: Packet) -> Any:
    """The packet as one of `mqtt5`."""
    return _AS_THEIRS[type(packet)](packet)
