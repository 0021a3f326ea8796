"""Which shard a topic's records go to, and in which shards a subscriber finds them. Pure; `MappedStorage` applies it.

By default a topic is a shard of the same name. A rule folds all topics that match its filter into a fixed number of
shards, by a hash that is the same on every broker. The first rule that matches a topic decides. A record in a folded
shard carries its topic in its own column; everywhere else the column is empty and the topic is the shard's name.

Rules are part of the data: after a change records lie where the old rules put them, and a subscriber looks where the
new rules say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
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
from shards.topics.filter_overlap import covers, overlap
from shards.topics.names import validate_shard_name
from shards.topics.topic_filters import is_filter, matches, validate_filter

MAX_FOLDED_SHARDS = 65_536


def _check_count(_rule: MappingRule, _field: attrs.Attribute[int], count: int) -> None:
    if not 1 <= count <= MAX_FOLDED_SHARDS:
        raise InvalidRequestError(f"a mapping rule must have from 1 to {MAX_FOLDED_SHARDS} shards, not {count}")


@attrs.frozen(slots=True)
class MappingRule:
    """Folds many topics into few shards.

    Attributes:
        topic_filter: The topics.
        prefix: The shards are called ``<prefix>/0`` up to ``<prefix>/<shards - 1>``. One that begins with ``$`` keeps
            them out of the sight of filters like ``#``.
        shards: How many.
        by: What is hashed: the ``topic`` keeps the order of each topic, the ``publisher`` that of each publisher.
    """

    topic_filter: str = attrs.field(converter=validate_filter)
    prefix: str = attrs.field(converter=validate_shard_name)
    shards: int = attrs.field(validator=_check_count)
    by: Literal["topic", "publisher"] = attrs.field(
        default="topic", validator=attrs.validators.in_(("topic", "publisher"))
    )

    @property
    def target(self) -> str:
        """A filter that matches all its shards, those not yet created too."""
        return f"{self.prefix}/+"

    def shard_for(self, topic: str, publisher: str) -> str:
        """The shard of one record."""
        hashed = topic if self.by == "topic" else publisher
        return f"{self.prefix}/{crc32c(hashed.encode()) % self.shards}"


class TopicMapping:
    """An ordered set of rules.

    Args:
        rules: The first that matches a topic wins.
    """

    def __init__(self, rules: Iterable[MappingRule] = ()) -> None:
        self.rules = tuple(rules)

    def rule_for(self, topic: str) -> MappingRule | None:
        """The rule that folds a topic, or None: it has a shard of its own."""
        return next((rule for rule in self.rules if matches(rule.topic_filter, topic)), None)

    def shard_for(self, topic: str, publisher: str = "") -> str:
        """The shard that a record of this topic and publisher client id goes to."""
        rule = self.rule_for(topic)
        return topic if rule is None else rule.shard_for(topic, publisher)

    def route(self, topic: str, record: Record, publisher: str = "") -> tuple[str, Record]:
        """Where a record goes, and the record as it is stored there: with its topic only if the shard is folded."""
        shard = self.shard_for(topic, publisher)
        stored_topic = "" if shard == topic else topic
        return shard, record if record.topic == stored_topic else attrs.evolve(record, topic=stored_topic)

    def shards_for(self, topic_filter: str) -> tuple[str, ...]:
        """Subscription targets (shard names and filters) that together reach every record matching a filter.

        They reach other records too, see `select`; and where two of them overlap one shard is reached twice.

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


def topic_of(shard: str, record: StoredRecord | Record) -> str:
    """The topic of a record that lies in a shard."""
    return record.topic or shard


def select(shard: str, records: Sequence[StoredRecord | Gap], topic_filter: str) -> list[StoredRecord | Gap]:
    """Those records of a shard whose topic matches a filter. Gaps stay: what was lost may have matched."""
    return [record for record in records if isinstance(record, Gap) or matches(topic_filter, topic_of(shard, record))]


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
        """Store one message; return its shard and what the store said. Promises and errors: `StorageAdapter.append`."""
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
        """Receive the records whose topic matches, wherever the rules put them. See `StorageAdapter.subscribe`.

        Order holds within a shard, so within a topic, unless its rule folds by publisher.
        """
        validate_filter(topic_filter)
        targets = self._mapping.shards_for(topic_filter)
        async with AsyncExitStack() as stack:
            merged = _Merged(topic_filter, targets, shares=group is not None)
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
    """Several subscriptions as one; each waits until its delivery is taken, so nothing piles up between them."""

    def __init__(self, topic_filter: str, targets: Sequence[str], *, shares: bool) -> None:
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
        """Pass on what one subscription delivers, until it ends."""
        try:
            async for delivery in subscription:
                if not self._is_first(target, delivery.shard):
                    continue
                records = select(delivery.shard, delivery.records, self._topic_filter)
                if records:
                    await self._send.send(attrs.evolve(delivery, records=records))
                else:
                    await delivery.acknowledge()
        except StorageError as error:
            await self._send.send(error)
        self._open_count -= 1
        if not self._open_count:
            self._send.close()

    def _is_first(self, target: str, shard: str) -> bool:
        """Whether this target is the one that delivers a shard: two may match it. In a group each range comes once."""
        return self._shares or target == next(one for one in self._targets if matches(one, shard))
