"""PUBLISH packets for one client: its protocol version, its topic aliases, its maximum packet size.

The part of a packet that is the same for many clients is encoded once, and kept with the message for the next client.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from broker_adapter.mqtt.model.message import MAX_HEADERS, Message
from broker_adapter.mqtt.model.topic_aliases import OutboundAliases
from broker_adapter.mqtt_codec import EMPTY, Properties, PublishTemplate, Version, publish_template
from broker_adapter.mqtt_codec.publish_template import plain_templates
from broker_adapter.mqtt_codec.text import shown

_MAX_INTERVAL_S: Final = 0xFFFF_FFFF
_SECOND_US: Final = 1_000_000
_ALIAS_BYTES: Final = 3
_SOME_INTERVAL_S: Final = 0


class PublishEncoder:
    """Encodes PUBLISH packets for one connection; see the module.

    Args:
        version: Protocol version of the client.
        aliases: Topic aliases of the connection.
        max_packet_bytes: Largest packet that the client accepts.
    """

    __slots__ = ("_aliases", "_max_packet_bytes", "_version")

    def __init__(self, version: Version, aliases: OutboundAliases, max_packet_bytes: int) -> None:
        self._version = version
        self._aliases = aliases
        self._max_packet_bytes = max_packet_bytes

    def template(
        self, message: Message, qos: int, retain: bool, subscription_ids: tuple[int, ...]
    ) -> PublishTemplate | None:
        """The common part of the packet; None if the packet would be larger than the client accepts.

        Raises:
            ValueError: MQTT cannot express the message. Writers other than brokers can append any record to a shard.
        """
        made_for = (self._version, qos, retain, subscription_ids)
        encoded = message.encoded
        if encoded is not None and encoded[0] == made_for:
            template = encoded[1]
        else:
            template = self._make(message, qos, retain, subscription_ids)
            message.encoded = (made_for, template)
        return template if template.size_bytes <= self._max_packet_bytes else None

    def templates(
        self, messages: Sequence[Message], qos: int, retain: bool, subscription_ids: tuple[int, ...]
    ) -> list[PublishTemplate] | None:
        """`template` for several messages that do not expire; None if one of them cannot be sent to this client."""
        try:
            made = self._plain(messages, qos, retain, subscription_ids)
            if made is not None:
                return made if max([one.size_bytes for one in made]) <= self._max_packet_bytes else None
            found = [self.template(message, qos, retain, subscription_ids) for message in messages]
        except ValueError:
            return None
        made = [one for one in found if one is not None]
        return made if len(made) == len(found) else None

    def _plain(
        self, messages: Sequence[Message], qos: int, retain: bool, subscription_ids: tuple[int, ...]
    ) -> list[PublishTemplate] | None:
        """The templates of messages of one topic, without properties, that have none yet; None for any others."""
        topic, has_properties = messages[0].topic, self._version is Version.V5
        if has_properties and subscription_ids:
            return None
        payloads = [
            message.payload
            for message in messages
            if message.encoded is None
            and message.topic == topic
            and not message.header_count
            and (message.properties is EMPTY or not has_properties)
        ]
        if len(payloads) < len(messages):
            return None
        _check_topic(topic)
        made_for = (self._version, qos, retain, subscription_ids)
        made = plain_templates(topic, payloads, qos, self._version, retain=retain)
        for message, template in zip(messages, made, strict=True):
            message.encoded = (made_for, template)
        return made

    def _make(self, message: Message, qos: int, retain: bool, subscription_ids: tuple[int, ...]) -> PublishTemplate:
        if message.header_count > MAX_HEADERS:
            raise ValueError(f"it has {message.header_count} headers; at most {MAX_HEADERS} are sent")
        _check_topic(message.topic)
        values = EMPTY
        if self._version is Version.V5:
            _check_texts(message.properties)
            values = message.properties
            if subscription_ids or message.expires_at_us:
                values = replace(
                    values,
                    subscription_identifiers=subscription_ids,
                    # The remaining interval is filled in when it is sent.
                    message_expiry_interval=_SOME_INTERVAL_S if message.expires_at_us else None,
                )
        return publish_template(message.topic, message.payload, qos, self._version, retain=retain, values=values)

    def packet(
        self,
        template: PublishTemplate,
        message: Message,
        packet_id: int,
        now_us: int,
        *,
        dup: bool = False,
        may_set_alias: bool = True,
    ) -> bytes:
        """Encode the packet to be sent now.

        Args:
            template: Template of the message.
            message: The message.
            packet_id: Packet identifier; 0 at QoS 0.
            now_us: Present time, in microseconds since 1970, for the remaining expiry interval.
            dup: It was, or may have been, sent before.
            may_set_alias: It is sent before all packets that are encoded later, so these may use an alias that it sets.
        """
        aliases = self._aliases
        if self._version is Version.V311 or not (message.expires_at_us or aliases.maximum):
            return template.packet(packet_id, dup=dup)
        expiry_interval_s = None
        if message.expires_at_us:
            # In started seconds.
            expiry_interval_s = min(_MAX_INTERVAL_S, max(1, -((now_us - message.expires_at_us) // _SECOND_US)))
        topic = message.topic
        known = alias = aliases.known(topic)
        if not alias and may_set_alias and template.size_bytes + _ALIAS_BYTES <= self._max_packet_bytes:
            alias = aliases.assign(topic)
        return template.packet(
            packet_id,
            dup=dup,
            expiry_interval_s=expiry_interval_s,
            topic_alias=alias or None,
            knows_alias=bool(known),
        )

    def packets(
        self,
        templates: Sequence[PublishTemplate],
        messages: Sequence[Message],
        packet_ids: Sequence[int],
        now_us: int,
        *,
        dup: bool = False,
    ) -> list[bytes]:
        """`packet` for several messages that do not expire, in the order in which they are sent."""
        if self._version is Version.V311 or not self._aliases.maximum:
            if dup:
                return [
                    template.packet(packet_id, dup=True)
                    for template, packet_id in zip(templates, packet_ids, strict=True)
                ]
            return [template.packet(packet_id) for template, packet_id in zip(templates, packet_ids, strict=True)]
        return [
            self.packet(template, message, packet_id, now_us, dup=dup)
            for template, message, packet_id in zip(templates, messages, packet_ids, strict=True)
        ]


@functools.lru_cache(maxsize=4096)
def _check_topic(topic: str) -> None:
    if not topic:
        raise ValueError("the topic is empty")
    if any(one in topic for one in "+#\0"):
        raise ValueError(f"topic {shown(topic)} has a wildcard or U+0000 in it")


def _check_texts(properties: Properties) -> None:
    """Check for U+0000: a client closes its connection when it receives one."""
    if properties is EMPTY:
        return
    texts = [properties.content_type or "", properties.response_topic or ""]
    for pair in properties.user_properties:
        texts += pair
    if any("\0" in text for text in texts):
        raise ValueError("a property has U+0000 in it")
    if properties.response_topic is not None:
        _check_topic(properties.response_topic)
