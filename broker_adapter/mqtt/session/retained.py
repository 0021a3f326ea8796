"""Retained messages: the newest one of each topic, as values of the state store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import StateDelete, StatePut
from broker_adapter.mqtt.message import Message
from broker_adapter.mqtt.position import StateVersion
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.stored import StoredMessage
from broker_adapter.mqtt.session.stored_message import message_from, stored_message
from broker_adapter.state_forms import decode, encode
from shards.clock import Clock
from shards.model import StateValue
from shards.topic_filters import is_filter, literal_prefix, matches

RETAINED_SHARD_PREFIX: Final = "$mqtt/retained/"
"""With the topic behind it, what stands for the shard of a message that was found here; no shard has such a name."""


def version_of(message: Message) -> StateVersion:
    """The version of the value in the store that a retained message was found in."""
    return StateVersion(message.offset)


class Retained:
    """The retained messages of the store.

    Args:
        adapter: The store.
        clock: Tells what has expired.
    """

    def __init__(self, adapter: StorageAdapter, *, clock: Clock) -> None:
        self._adapter = adapter
        self._clock = clock

    def change_for(self, message: Message) -> StatePut | StateDelete:
        """What a message that is published with the retain flag changes: an empty payload deletes."""
        key = keys.retained(message.topic)
        if not message.payload:
            return StateDelete(key)
        return StatePut(key, encode(stored_message(message)), expires_at_us=message.expires_at_us)

    async def get(self, topic: str) -> Message | None:
        """The retained message of a topic."""
        value = await self._adapter.get_state(keys.retained(topic))
        return None if value is None else self._message(value)

    async def find(self, topic_filter: str) -> list[Message]:
        """The retained messages that match a filter, by topic, without those that have expired.

        Who subscribed at a position that does not cover the version of one gets it as a live message too. They lie in
        the shard ``$mqtt/retained/<topic>``, which is no shard of the store, and have no lsn. The version stands for
        their offset, so that what is sent again is the message that was sent, not its successor.
        """
        async with aclosing(self.iterate(topic_filter)) as messages:
            return [message async for message in messages]

    async def iterate(self, topic_filter: str) -> AsyncGenerator[Message, None]:
        """The same one after another, for many; close it (`contextlib.aclosing`) when left early."""
        prefix = literal_prefix(topic_filter)
        if not is_filter(topic_filter):
            message = await self.get(topic_filter)
            if message is not None:
                yield message
            return
        if prefix and topic_filter == f"{prefix}#":
            # Such a filter matches its parent too, which does not begin with the prefix.
            message = await self.get(prefix.removesuffix("/"))
            if message is not None:
                yield message
        async with aclosing(self._adapter.scan_state(keys.retained_prefix(prefix))) as values:
            async for value in values:
                message = self._message(value)
                # The prefix in a key may be cut; then the parent is met again.
                if message is not None and message.topic.startswith(prefix) and matches(topic_filter, message.topic):
                    yield message

    def _message(self, value: StateValue) -> Message | None:
        message = message_from(decode(StoredMessage, value.key, value.value))
        if 0 < message.expires_at_us <= self._clock.now_us():
            return None
        message.shard, message.offset = RETAINED_SHARD_PREFIX + message.topic, value.version
        return message
