"""Messages as PUBLISH packets for one client: its version, its topic aliases, the size that it takes."""

from __future__ import annotations

from typing import Final

import attrs

from broker_adapter.mqtt.codec import Properties, PublishTemplate, Version, publish_template
from broker_adapter.mqtt.message import Message
from broker_adapter.mqtt.topic_aliases import OutboundAliases

_SECOND_US: Final = 1_000_000


@attrs.frozen(slots=True)
class Encoded:
    """A PUBLISH but for its packet identifier."""

    _template: PublishTemplate
    _dup: bool

    def with_id(self, packet_id: int) -> bytes:
        """The packet; at QoS 0 the identifier is not used."""
        return self._template.with_packet_id(packet_id, dup=self._dup)


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

    def prepare(
        self,
        message: Message,
        qos: int,
        retain: bool,
        subscription_ids: tuple[int, ...],
        now_us: int,
        *,
        dup: bool = False,
    ) -> Encoded | None:
        """The packet for a message; None if it is larger than the client takes."""
        if self._version is not Version.V5:
            template = publish_template(message.topic, message.payload, qos, self._version, retain=retain)
            return Encoded(template, dup) if template.size_bytes <= self._max_packet_bytes else None
        values = message.properties
        if subscription_ids or message.expires_at_us:
            expiry_s = None
            if message.expires_at_us:
                expiry_s = max(1, (message.expires_at_us - now_us) // _SECOND_US)
            values = attrs.evolve(values, subscription_identifiers=subscription_ids, message_expiry_interval=expiry_s)
        topic = message.topic
        template = self._template(topic, message, qos, retain, values)
        if template.size_bytes > self._max_packet_bytes:
            return None
        # Counted only when the packet goes out: an alias that the client never saw would be unknown to it.
        if alias := self._aliases.known(topic):
            template = self._template("", message, qos, retain, attrs.evolve(values, topic_alias=alias))
        elif alias := self._aliases.assign(topic):
            template = self._template(topic, message, qos, retain, attrs.evolve(values, topic_alias=alias))
        return Encoded(template, dup)

    def _template(self, topic: str, message: Message, qos: int, retain: bool, values: Properties) -> PublishTemplate:
        return publish_template(topic, message.payload, qos, Version.V5, retain=retain, values=values)
