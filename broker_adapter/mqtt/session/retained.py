"""Retained messages: the newest one of each topic, as values of the state store."""

from __future__ import annotations

from broker_adapter.adapter import StorageAdapter
from broker_adapter.changes import StateDelete, StatePut
from broker_adapter.mqtt.message import Message
from shards.clock import Clock


class Retained:
    """The retained messages of the store.

    Args:
        adapter: The store.
        clock: Tells what has expired.
    """

    def __init__(self, adapter: StorageAdapter, *, clock: Clock) -> None:
        raise NotImplementedError

    def change_for(self, message: Message) -> StatePut | StateDelete:
        """What a message that is published with the retain flag changes: an empty payload deletes."""
        raise NotImplementedError

    async def find(self, topic_filter: str) -> list[Message]:
        """The retained messages that match a filter, by topic, without those that have expired.

        They lie in the shard ``$mqtt/retained/<topic>``, which is no shard of the store, and their lsn is that of the
        commit that retained them: who subscribed at a lower one gets the message as a live one too.
        """
        raise NotImplementedError
