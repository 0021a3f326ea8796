"""Which shard stores a topic's records, and in which shards a subscriber finds them. `MappedStorage` applies it.

By default a topic has a shard of the same name. A rule maps all topics that match its filter to a fixed number of
shards, by a hash that is the same on every broker. The first rule that matches a topic decides. A record in such a
shared shard carries its topic in its own column; elsewhere the column is empty and the topic is the shard's name. A
topic that the rules do not map to the record's shard is not believed: the right to append to one shard is no right to
publish to other topics. Rules do not move data: after a change older records stay where the old rules put them, and a
subscriber reads only the shards that the new rules name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import attrs
import trio

from broker_adapter.adapter import DEFAULT_CONFIG, LATEST, StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.subscription import Delivery, Subscription
from shards.errors import InvalidRequestError, ShardNotFoundError, StorageError
from shards.format.checksum import crc32c
from shards.format.record import Gap, Record, StoredRecord
from shards.model import AckLevel, Appended, ShardConfig
from shards.position import Start
from shards.topics.names import validate_shard_name
from shards.topics.topic_filters import covers, is_filter, matches, overlap, validate_filter

MAX_FOLDED_SHARDS = 65_536

TopicOf = Callable[[str, str], str]
"""Returns the topic of a record, from its shard and the topic that it names; see `TopicMapping.topic_of`."""


def _check_count(_rule: MappingRule, _field: attrs.Attribute[int], count: int) -> None:
    if not 1 <= count <= MAX_FOLDED_SHARDS:
        raise InvalidRequestError(f"a mapping rule must have from 1 to {MAX_FOLDED_SHARDS} shards, not {count}")


@attrs.frozen(slots=True)
class MappingRule:
    """Maps many topics to few shards.

    Attributes:
        topic_filter: The topics.
        prefix: The shards are called ``<prefix>/0`` up to ``<prefix>/<shards - 1>``. A prefix that begins with ``$``
            keeps them out of filters like ``#``.
        shards: The number of shards.
        by: What is hashed: ``topic`` keeps the order of each topic, ``publisher`` the order of each publisher.
    """

    topic_filter: str = attrs.field(converter=validate_filter)
    prefix: str = attrs.field(converter=validate_shard_name)
    shards: int = attrs.field(validator=_check_count)
    by: Literal["topic", "publisher"] = attrs.field(
        default="topic", validator=attrs.validators.in_(("topic", "publisher"))
    )

    @property
    def target(self) -> str:
        """A filter that matches all its shards, including those that are not created yet."""
        return f"{self.prefix}/+"

    def shard_for(self, topic: str, publisher: str) -> str:
        """The shard of one record."""
        hashed = topic if self.by == "topic" else publisher
        return f"{self.prefix}/{crc32c(hashed.encode()) % self.shards}"

    def holds(self, shard: str, topic: str) -> bool:
        """Whether a record of this topic, by some publisher, goes to the shard."""
        if self.by == "topic":
            return shard == self.shard_for(topic, "")
        prefix, _, number = shard.rpartition("/")
        return prefix == self.prefix and number.isdecimal() and number == str(int(number)) and int(number) < self.shards


class TopicMapping:
    """An ordered list of rules.

    Args:
        rules: The first that matches a topic decides.
    """

    def __init__(self, rules: Iterable[MappingRule] = ()) -> None:
        self.rules = tuple(rules)

    def rule_for(self, topic: str) -> MappingRule | None:
        """The rule that maps a topic, or None: the topic has a shard of its own."""
        return next((rule for rule in self.rules if matches(rule.topic_filter, topic)), None)

    def shard_for(self, topic: str, publisher: str = "") -> str:
        """The shard that a record of this topic and publisher client id goes to."""
        rule = self.rule_for(topic)
        return topic if rule is None else rule.shard_for(topic, publisher)

    def topic_of(self, shard: str, named: str) -> str:
        """The topic of a record.

        Args:
            shard: Its shard.
            named: The topic that the record names; empty for none. If it does not map to the shard, it does not count.
        """
        if not named or named == shard:
            return shard
        rule = self.rule_for(named)
        return named if rule is not None and rule.holds(shard, named) else shard

    def route(self, topic: str, record: Record, publisher: str = "") -> tuple[str, Record]:
        """The shard of a record, and the record as it is stored there: with its topic only in a shared shard."""
        shard = self.shard_for(topic, publisher)
        stored_topic = "" if shard == topic else topic
        return shard, record if record.topic == stored_topic else attrs.evolve(record, topic=stored_topic)

    def shards_for(self, topic_filter: str) -> tuple[str, ...]:
        """Subscription targets (shard names and filters) that together reach every record matching a filter.

        They also reach records that do not match; a subscriber has to look at the topic of each (`topic_of`).
        Where two targets overlap, a shard is reached twice.

        Args:
            topic_filter: A filter or a plain topic.
        """
        if not is_filter(topic_filter):
            rule = self.rule_for(topic_filter)
            if rule is None:
                return (topic_filter,)
            return (rule.shard_for(topic_filter, ""),) if rule.by == "topic" else (rule.target,)
        targets: list[str] = []
        for rule in self.rules:
            if overlap(rule.topic_filter, topic_filter):
                targets.append(rule.target)
            if covers(rule.topic_filter, topic_filter):
                break
        else:
            targets.insert(0, topic_filter)
        kept: list[str] = []
        for target in targets:
            if not any(covers(wider, target) for wider in kept):
                kept.append(target)
        return tuple(kept)


class MappedStorage:
    """Publishes and subscribes by topic over an adapter.

    Args:
        adapter: The store.
        mapping: The rules; by default each topic has a shard of its own.
        create: Configuration of shards that are created when they are first needed; None: never create any.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        mapping: TopicMapping | None = None,
        *,
        create: ShardConfig | None = DEFAULT_CONFIG,
    ) -> None:
        self._adapter = adapter
        self._mapping = mapping or TopicMapping()
        self._create = create

    async def publish(
        self, topic: str, record: Record, *, publisher: str = "", ack: AckLevel = AckLevel.DEFAULT
    ) -> tuple[str, Appended]:
        """Store one message as `StorageAdapter.append` does; return its shard and the result."""
        shard, stored = self._mapping.route(validate_shard_name(topic), record, publisher)
        try:
            return shard, await self._adapter.append(shard, [stored], ack=ack)
        except ShardNotFoundError:
            if self._create is None:
                raise
        await self._adapter.create_shard(shard, self._create, exist_ok=True)
        return shard, await self._adapter.append(shard, [stored], ack=ack)

    @asynccontextmanager
    async def subscribe(
        self, topic_filter: str, start: Start = LATEST, *, group: str | None = None
    ) -> AsyncIterator[Subscription]:
        """Receive the records whose topic matches, from all shards that the rules name. See `StorageAdapter.subscribe`.

        Order holds within a shard, so within a topic, unless its rule hashes the publisher.
        """
        validate_filter(topic_filter)
        targets = self._mapping.shards_for(topic_filter)
        async with AsyncExitStack() as stack:
            merged = _Merged(self._mapping, topic_filter, targets, shares=group is not None)
            subscriptions = []
            for target in targets:
                if self._create is not None and not is_filter(target):
                    await self._adapter.create_shard(target, self._create, exist_ok=True)
                subscriptions.append(
                    await stack.enter_async_context(self._adapter.subscribe(target, start, group=group))
                )
            tasks = await stack.enter_async_context(background_tasks())
            for target, subscription in zip(targets, subscriptions, strict=True):
                tasks.start_soon(merged.forward, target, subscription)
            yield merged


class _Merged(Subscription):
    """Several subscriptions as one. Each waits until its delivery is received, so nothing is buffered between them."""

    def __init__(self, mapping: TopicMapping, topic_filter: str, targets: Sequence[str], *, shares: bool) -> None:
        self._mapping = mapping
        self._topic_filter = topic_filter
        self._targets = targets
        self._shares = shares
        self._open_count = len(targets)
        self._send, self._receive = trio.open_memory_channel[Delivery | StorageError](0)

    async def __anext__(self) -> Delivery:
        try:
            item = await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        if isinstance(item, StorageError):
            raise item
        return item

    async def forward(self, target: str, subscription: Subscription) -> None:
        """Forward the deliveries of one subscription until it ends."""
        try:
            async for delivery in subscription:
                if not self._is_first(target, delivery.shard):
                    continue
                records = self._select(delivery.shard, delivery.records)
                if records:
                    await self._send.send(attrs.evolve(delivery, records=records))
                else:
                    await delivery.acknowledge()
        except StorageError as error:
            await self._send.send(error)
        self._open_count -= 1
        if not self._open_count:
            self._send.close()

    def _select(self, shard: str, records: Sequence[StoredRecord | Gap]) -> list[StoredRecord | Gap]:
        """The records whose topic matches. Gaps are kept: lost records may have matched."""
        found: list[StoredRecord | Gap] = []
        for record in records:
            if isinstance(record, Gap):
                found.append(record)
                continue
            topic = self._mapping.topic_of(shard, record.topic)
            if matches(self._topic_filter, topic):
                found.append(record if (record.topic or shard) == topic else attrs.evolve(record, topic=""))
        return found

    def _is_first(self, target: str, shard: str) -> bool:
        """Whether this target delivers the shard: two may match it. In a group each range is delivered once anyway."""
        return self._shares or target == next(one for one in self._targets if matches(one, shard))
