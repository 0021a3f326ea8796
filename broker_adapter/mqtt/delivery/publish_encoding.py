"""Messages as PUBLISH packets for one client: its version, its topic aliases, the size that it takes.

What many clients get alike is encoded once, and waits with the message for the next of them.
"""

from __future__ import annotations

import functools
from typing import Final

import attrs

from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.topic_aliases import OutboundAliases
from broker_adapter.mqtt_codec import EMPTY, Properties, PublishTemplate, Version, publish_template

_MAX_INTERVAL_S: Final = 0xFFFF_FFFF
_SECOND_US: Final = 1_000_000
_ALIAS_BYTES: Final = 3
_SOME_INTERVAL_S: Final = 0


class PublishEncoder:
    """See the module.

    Args:
        version: The client's.
        aliases: Of the connection.
        max_packet_bytes: Largest packet that the client takes.
    """

    def __init__(self, version: Version, aliases: OutboundAliases, max_packet_bytes: int) -> None:
        self._version = version
        self._aliases = aliases
        self._max_packet_bytes = max_packet_bytes

    def template(
        self, message: Message, qos: int, retain: bool, subscription_ids: tuple[int, ...]
    ) -> PublishTemplate | None:
        """What `packet` is made of; None if that would be larger than the client takes.

        Raises:
            ValueError: MQTT has no form for the message. Others than MQTT clients can append any record to a shard.
        """
        made_for = (self._version, qos, retain, subscription_ids)
        encoded = message.encoded
        if encoded is not None and encoded[0] == made_for:
            template = encoded[1]
        else:
            template = self._make(message, qos, retain, subscription_ids)
            message.encoded = (made_for, template)
        return template if template.size_bytes <= self._max_packet_bytes else None

    def _make(self, message: Message, qos: int, retain: bool, subscription_ids: tuple[int, ...]) -> PublishTemplate:
        _check_topic(message.topic)
        values = EMPTY
        if self._version is Version.V5:
            _check_texts(message.properties)
            values = message.properties
            if subscription_ids or message.expires_at_us:
                values = attrs.evolve(
                    values,
                    subscription_identifiers=subscription_ids,
                    # What is left is filled in when it is sent.
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
        """The packet, which is going out.

        Args:
            template: Of the message.
            message: The message.
            packet_id: 0 at QoS 0.
            now_us: The time, for what the message has left.
            dup: It was sent before.
            may_set_alias: It goes out before all that is made later, so that these may count on its alias.
        """
        aliases = self._aliases
        if self._version is Version.V311 or not (message.expires_at_us or aliases.maximum):
            return template.with_packet_id(packet_id, dup=dup)
        expiry_interval_s = None
        if message.expires_at_us:
            # In seconds that have begun.
            expiry_interval_s = min(_MAX_INTERVAL_S, max(1, -((now_us - message.expires_at_us) // _SECOND_US)))
        topic = message.topic
        known = alias = aliases.known(topic)
        if not alias and may_set_alias and template.size_bytes + _ALIAS_BYTES <= self._max_packet_bytes:
            alias = aliases.assign(topic)
        return (
            template.head(
                packet_id,
                dup=dup,
                expiry_interval_s=expiry_interval_s,
                topic_alias=alias or None,
                knows_alias=bool(known),
            )
            + message.payload
        )


@functools.lru_cache(maxsize=4096)
def _check_topic(topic: str) -> None:
    if not topic:
        raise ValueError("the topic is empty")
    if any(one in topic for one in "+#\0"):
        raise ValueError(f"topic {topic!a} has a wildcard or U+0000 in it")


def _check_texts(properties: Properties) -> None:
    """A client closes its connection when it gets U+0000."""
    if properties is EMPTY:
        return
    texts = [properties.content_type or "", properties.response_topic or ""]
    for pair in properties.user_properties:
        texts += pair
    if any("\0" in text for text in texts):
        raise ValueError("a property has U+0000 in it")
    if properties.response_topic is not None:
        _check_topic(properties.response_topic)
