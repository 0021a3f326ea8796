"""Retained messages: the newest one of each topic, as values of the state store."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import attrs

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import StateDelete, StatePut
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import StateVersion
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.stored import StoredMessage, message_from, stored_message
from broker_adapter.state_forms import decode, encode
from shards.model import StateValue
from shards.seams.clock import Clock
from shards.topics.names import BROKER_PREFIX
from shards.topics.topic_filters import is_filter, literal_prefix, matches

RETAINED_SHARD_PREFIX: Final = f"{BROKER_PREFIX}retained/"
"""Prefix of the shard name of a retained message, followed by its topic; no real shard has such a name."""


_PAGE_MESSAGES: Final = 500
_PAGE_BYTES: Final = 1 << 20
_LOOKED_AT_ONCE: Final = 5000


@attrs.frozen(slots=True)
class RetainedPage:
    """Some of the retained messages that match a filter.

    Attributes:
        messages: In the order of their keys, each with its key, from which the next page continues.
        last: Last key that was examined.
        is_last: There are no more after this page.
    """

    messages: list[tuple[bytes, Message]]
    last: bytes
    is_last: bool


def version_of(message: Message) -> StateVersion:
    """The version of the value in the store that a retained message was found in."""
    return StateVersion(message.offset)


class Retained:
    """The retained messages of the store.

    Args:
        adapter: The store.
        clock: Tells which messages have expired.
    """

    def __init__(self, adapter: StorageAdapter, *, clock: Clock) -> None:
        self._adapter = adapter
        self._clock = clock

    def change_for(self, message: Message) -> StatePut | StateDelete:
        """The change made by a message that is published with the retain flag: an empty payload deletes."""
        key = keys.retained(message.topic)
        if not message.payload:
            return StateDelete(key)
        return StatePut(key, encode(stored_message(message)), expires_at_us=message.expires_at_us)

    async def get(self, topic: str) -> Message | None:
        """The retained message of a topic."""
        value = await self._adapter.get_state(keys.retained(topic))
        return None if value is None else self._message(value)

    async def page(self, topic_filter: str, after: bytes) -> RetainedPage:
        """The next retained messages that match a filter, after a key, without expired ones.

        A client that subscribed at a position that does not cover a message's version gets it as a live message too.
        These messages have the shard name ``$mqtt/retained/<topic>``, which does not exist in the store, and no lsn.
        The version of the value is their offset, so that redelivery sends the same message, not a newer one.
        """
        if not is_filter(topic_filter):
            key = keys.retained(topic_filter)
            message = await self.get(topic_filter)
            return RetainedPage([] if message is None else [(key, message)], key, is_last=True)
        found: list[tuple[bytes, Message]] = []
        size_bytes = looked_at = 0
        prefix = literal_prefix(topic_filter)
        parent = prefix.removesuffix("/")
        # Such a filter also matches its parent, whose key does not have the prefix: it comes before all others.
        if not after and prefix and topic_filter == f"{prefix}#" and (message := await self.get(parent)) is not None:
            found.append((keys.retained_prefix(prefix)[:-1], message))
        last = after
        values = self._adapter.scan_state(keys.retained_prefix(prefix), after=after or None)
        async with aclosing(values):
            async for value in values:
                looked_at += 1
                last = value.key
                message = self._message(value)
                # The prefix in a key may be cut; then the parent is found again here.
                if message is not None and message.topic.startswith(prefix) and matches(topic_filter, message.topic):
                    found.append((value.key, message))
                    size_bytes += len(message.payload)
                if len(found) >= _PAGE_MESSAGES or size_bytes >= _PAGE_BYTES or looked_at >= _LOOKED_AT_ONCE:
                    return RetainedPage(found, last, is_last=False)
        return RetainedPage(found, last, is_last=True)

    def _message(self, value: StateValue) -> Message | None:
        message = message_from(decode(StoredMessage, value.key, value.value))
        if 0 < message.expires_at_us <= self._clock.now_us():
            return None
        message.shard, message.offset = RETAINED_SHARD_PREFIX + message.topic, value.version
        return message
