"""Publishes of one client that are appended together: a group for each shard, and a decision for each topic.

Where the messages of a topic are stored is looked up once for all of them, and what is the same in their records is
made once. A group has a bound, so that the store takes the group if it takes each of its messages. Nothing is stored
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from broker_adapter.cache_queue import QueueWriter
from broker_adapter.mqtt.model.message import Headers, Message, common_headers, record_of
from broker_adapter.mqtt.publish.received import Received
from broker_adapter.mqtt.publish.store_changes import Publisher
from shards.format.record import Record

_RECORD_BYTES: Final = 64
_HEADER_BYTES: Final = 8


@attrs.frozen(slots=True, eq=False)
class AppendGroup:
    """Messages for one shard, in order; for the shard of a cache queue, with the queue's writer.

    Attributes:
        sizes: About as many bytes as each message will have in their batch, and no less.
    """

    shard: str
    queue: QueueWriter | None = None
    received: list[Received] = attrs.Factory(list)
    records: list[Record] = attrs.Factory(list)
    sizes: list[int] = attrs.Factory(list)

    def add(self, received: Received, record: Record, size_bytes: int) -> None:
        """Add the next message."""
        self.received.append(received)
        self.records.append(record)
        self.sizes.append(size_bytes)

    def parts(self, limit_bytes: int) -> Iterator[AppendGroup]:
        """The same messages in groups within a limit; a message that is larger than that is alone."""
        if sum(self.sizes) <= limit_bytes:
            yield self
            return
        start = part_bytes = 0
        for end, size_bytes in enumerate(self.sizes):
            if end > start and part_bytes + size_bytes > limit_bytes:
                yield self._part(start, end)
                start, part_bytes = end, 0
            part_bytes += size_bytes
        yield self._part(start, len(self.sizes))

    def _part(self, start: int, end: int) -> AppendGroup:
        chosen = slice(start, end)
        return AppendGroup(self.shard, self.queue, self.received[chosen], self.records[chosen], self.sizes[chosen])


def size_of(topic: str, headers: Headers) -> int:
    """Most bytes that a record with this topic and these headers has in a batch, without its value."""
    return (
        _RECORD_BYTES
        + len(topic.encode())
        + sum([_HEADER_BYTES + len(name.encode()) + len(value) for name, value in headers])
    )


@attrs.frozen(slots=True)
class Plan:
    """How the messages of a topic and a QoS are stored.

    Attributes:
        qos: Their QoS.
        group: The messages for their shard.
        topic: Value of their records' topic column.
        headers: Their `common_headers`.
        record_bytes: `size_of` a record with these headers.
        queues: The cache queues that they are stored in as well.
        queue_groups: The messages for the shards of these.
    """

    qos: int
    group: AppendGroup
    topic: str
    headers: Headers
    record_bytes: int
    queues: tuple[QueueWriter, ...]
    queue_groups: tuple[AppendGroup, ...]

    @property
    def refusing(self) -> QueueWriter | None:
        """The cache queue that refuses the next message, because it is full; None if there is no such queue."""
        for queue in self.queues:
            if queue.refuses_more:
                return queue
        return None

    def add(self, received: Received, message: Message) -> None:
        """Add the next message."""
        record = record_of(message, self.topic, self.headers)
        headers = record.headers
        size_bytes = self.record_bytes if headers is self.headers else size_of(message.topic, headers)
        size_bytes += len(message.payload)
        self.group.add(received, record, size_bytes)
        for queue, group in zip(self.queues, self.queue_groups, strict=True):
            if queue.take_room(len(message.payload)):
                group.add(received, record_of(message, None, self.headers), size_bytes)


class AppendGroups:
    """The groups of messages of one client, which are its only publisher.

    Args:
        publisher: Tells where messages are stored.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._groups: dict[str, AppendGroup] = {}
        self._plans: dict[str, Plan] = {}
        self._queues: set[QueueWriter] = set()

    def __iter__(self) -> Iterator[AppendGroup]:
        """The groups with messages; those of a shard are in the order of their messages."""
        limit_bytes = self._publisher.append_bytes
        for group in self._groups.values():
            if group.records:
                yield from group.parts(limit_bytes)

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
        for queue in queues:
            if queue not in self._queues:
                # Once: afterwards the room is counted down, message by message.
                self._queues.add(queue)
                queue.begin_chunk()
        headers = common_headers(message.publisher, message.qos)
        plan = self._plans[message.topic] = Plan(
            message.qos,
            group,
            placement.topic,
            headers,
            size_of(message.topic, headers),
            queues,
            tuple(self._group(writer.shard, writer) for writer in queues),
        )
        return plan

    def _group(self, shard: str, queue: QueueWriter | None = None) -> AppendGroup:
        group = self._groups.get(shard)
        if group is None:
            group = self._groups[shard] = AppendGroup(shard, queue)
        return group
