"""Messages as PUBLISH packets for one client: its version, its topic aliases, the size that it takes.

What many clients get alike is encoded once, and waits with the message for the next of them.
"""

from __future__ import annotations

from typing import Final

import attrs

from broker_adapter.mqtt.codec import Properties, PublishTemplate, Version, publish_template
from broker_adapter.mqtt.message import Message
from broker_adapter.mqtt.topic_aliases import OutboundAliases

_SECOND_US: Final = 1_000_000


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
        may_set_alias: bool = True,
    ) -> PublishTemplate | None:
        """The packet for a message; None if it is larger than the client takes.

        Args:
            message: The message.
            qos: At which it is sent.
            retain: The retain flag as it is sent.
            subscription_ids: Those that it is sent with.
            now_us: The time, for what it has left.
            may_set_alias: It goes out before all that is prepared later, so that these may count on its alias.
        """
        is_v5 = self._version is Version.V5
        if is_v5 and self._aliases.maximum:
            return self._with_alias(message, qos, retain, subscription_ids, now_us, may_set_alias=may_set_alias)
        expiry_s = _expiry_s(message, now_us) if is_v5 and message.expires_at_us else None
        made_for = (self._version, qos, retain, subscription_ids, expiry_s)
        encoded = message.encoded
        if encoded is not None and encoded[0] == made_for:
            template = encoded[1]
        else:
            values = _properties(message, subscription_ids, expiry_s)
            template = publish_template(
                message.topic, message.payload, qos, self._version, retain=retain, values=values
            )
            message.encoded = (made_for, template)
        return template if template.size_bytes <= self._max_packet_bytes else None

    def _with_alias(
        self,
        message: Message,
        qos: int,
        retain: bool,
        subscription_ids: tuple[int, ...],
        now_us: int,
        *,
        may_set_alias: bool,
    ) -> PublishTemplate | None:
        expiry_s = _expiry_s(message, now_us) if message.expires_at_us else None
        values = _properties(message, subscription_ids, expiry_s)
        topic = message.topic
        if alias := self._aliases.known(topic):
            topic = ""
        elif may_set_alias:
            alias = self._aliases.next_for(topic)
        if alias:
            values = attrs.evolve(values, topic_alias=alias)
        template = publish_template(topic, message.payload, qos, self._version, retain=retain, values=values)
        if template.size_bytes > self._max_packet_bytes:
            return None
        if topic and may_set_alias:
            # Only now: an alias that the client never saw would mean nothing to it.
            self._aliases.count(topic)
        return template


def _expiry_s(message: Message, now_us: int) -> int:
    """What the message has left, in seconds that have begun."""
    return max(1, -((now_us - message.expires_at_us) // _SECOND_US))


def _properties(message: Message, subscription_ids: tuple[int, ...], expiry_s: int | None) -> Properties:
    values = message.properties
    if subscription_ids or expiry_s is not None:
        values = attrs.evolve(values, subscription_identifiers=subscription_ids, message_expiry_interval=expiry_s)
    return values
