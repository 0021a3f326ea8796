"""Publishes of one client that are appended together: a group for each shard, and a decision for each topic.

Where the messages of a topic are stored is looked up once for all of them, and what is the same in their records is
made once. Nothing is stored here.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from broker_adapter.cache_queue import QueueWriter
from broker_adapter.mqtt.model.message import Headers, Message, common_headers, record_of
from broker_adapter.mqtt.publish.received import Received
from broker_adapter.mqtt.publish.store_changes import Publisher
from shards.format.record import Record


@attrs.frozen(slots=True)
class AppendGroup:
    """Messages for one shard, in order; for the shard of a cache queue, with the queue's writer."""

    shard: str
    queue: QueueWriter | None = None
    received: list[Received] = attrs.Factory(list)
    records: list[Record] = attrs.Factory(list)


@attrs.frozen(slots=True)
class Plan:
    """How the messages of a topic and a QoS are stored.

    Attributes:
        qos: Their QoS.
        group: The messages for their shard.
        topic: Value of their records' topic column.
        headers: Their `common_headers`.
        queues: The cache queues that they are stored in as well.
        queue_groups: The messages for the shards of these.
    """

    qos: int
    group: AppendGroup
    topic: str
    headers: Headers
    queues: tuple[QueueWriter, ...]
    queue_groups: tuple[AppendGroup, ...]

    def add(self, received: Received, message: Message) -> None:
        """Add the next message."""
        self.group.received.append(received)
        self.group.records.append(record_of(message, self.topic, self.headers))
        for group in self.queue_groups:
            group.received.append(received)
            group.records.append(record_of(message, None, self.headers))


class AppendGroups:
    """The groups of messages of one client, which are its only publisher.

    Args:
        publisher: Tells where messages are stored.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._groups: dict[str, AppendGroup] = {}
        self._plans: dict[str, Plan] = {}

    def __iter__(self) -> Iterator[AppendGroup]:
        """The groups with messages, in the order of their first messages."""
        return (group for group in self._groups.values() if group.records)

    def plan_for(self, message: Message) -> Plan | None:
        """The plan for a message and those like it; None if its shard has to be created first."""
        plan = self._plans.get(message.topic)
        if plan is not None and plan.qos == message.qos:
            return plan
        placement = self._publisher.placement_of(message)
        if not self._publisher.is_known(placement.shard):
            return None
        group = self._group(placement.shard)
        queues = self._publisher.queues_for(message)
        plan = self._plans[message.topic] = Plan(
            message.qos,
            group,
            placement.topic,
            common_headers(message.publisher, message.qos),
            queues,
            tuple(self._group(writer.shard, writer) for writer in queues),
        )
        return plan

    def _group(self, shard: str, queue: QueueWriter | None = None) -> AppendGroup:
        group = self._groups.get(shard)
        if group is None:
            group = self._groups[shard] = AppendGroup(shard, queue)
        return group
