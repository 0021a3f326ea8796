"""Where the messages of a topic are stored, and whether a session that was away gets them. Pure.

Storage rules say whether and how a message is kept. The topic mapping (`topic_mapping`) says in which shard; this
module adds shards for topics that cannot be shard names, and for messages that are not kept.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import attrs

from broker_adapter.errors import InvalidNameError
from broker_adapter.topic_mapping import MappingRule, TopicMapping
from shards.format.checksum import crc32c
from shards.model import Mode, Retention, ShardConfig
from shards.topics.names import BROKER_PREFIX, validate_shard_name
from shards.topics.topic_filters import covers, is_filter, matches, validate_filter

FOLDED_SHARDS: Final = 16

LIVE_PREFIX: Final = f"{BROKER_PREFIX}live"
"""Shards of messages that are not kept: only clients that are subscribed at that moment get them."""

LIVE_TARGET: Final = f"{LIVE_PREFIX}/+"

LIVE_CONFIG: Final = ShardConfig(mode=Mode.MEMORY, retention=Retention(max_age_s=60, max_bytes=64 << 20))

_LONG: Final = MappingRule("#", prefix=f"{BROKER_PREFIX}long", shards=FOLDED_SHARDS)

_CACHED_TOPICS: Final = 100_000


class Storage(enum.StrEnum):
    """How a message is kept."""

    NONE = "none"
    """It is not stored: only clients that are subscribed now get it."""

    MEMORY = "memory"
    """It is stored in memory, and lost when the storage node stops."""

    FILE = "file"
    """It is stored in files, and durable when it is acknowledged."""


_ALL_QOS: Final = frozenset((0, 1, 2))
_DEFAULT: Final = (Storage.NONE, Storage.FILE, Storage.FILE)


def _as_set(values: Iterable[int]) -> frozenset[int]:
    return frozenset(values)


@attrs.frozen(slots=True)
class StorageRule:
    """How the messages of some topics are kept.

    Attributes:
        topic_filter: The topics.
        storage: How they are kept; None leaves that to later rules.
        qos: The rule applies to messages of these QoS.
        offline: Whether sessions get messages that were stored while they were away; None leaves that to later rules.
    """

    topic_filter: str = attrs.field(converter=validate_filter)
    storage: Storage | None = None
    qos: frozenset[int] = attrs.field(
        default=_ALL_QOS, converter=_as_set, validator=attrs.validators.deep_iterable(attrs.validators.in_(_ALL_QOS))
    )
    offline: bool | None = None


@attrs.frozen(slots=True)
class TopicStorage:
    """What the rules say about one topic.

    Attributes:
        by_qos: How messages of QoS 0, 1 and 2 are kept.
        mode: Mode of the topic's shard when it is created: the strongest that any QoS needs.
        offline: Whether sessions get messages that were stored while they were away.
    """

    by_qos: tuple[Storage, Storage, Storage]
    mode: Mode
    offline: bool


class StorageRules:
    """An ordered list of rules; the first one that says something about a topic (and QoS) decides.

    By default messages of QoS 0 are not kept; those of QoS 1 and 2 are kept in files.

    Args:
        rules: The rules.
        offline: Default for topics that no rule decides.
    """

    def __init__(self, rules: Iterable[StorageRule] = (), *, offline: bool = True) -> None:
        self.rules = tuple(rules)
        self.offline = offline
        self._by_topic: dict[str, TopicStorage] = {}

    def of_topic(self, topic: str) -> TopicStorage:
        """What the rules say about a topic."""
        found = self._by_topic.get(topic)
        if found is None:
            found = self._decide(topic)
            if len(self._by_topic) >= _CACHED_TOPICS:
                del self._by_topic[next(iter(self._by_topic))]
            self._by_topic[topic] = found
        return found

    def keeps_offline(self, topic: str) -> bool:
        """Whether sessions get messages of a topic that were stored while they were away."""
        return self.of_topic(topic).offline

    def _decide(self, topic: str) -> TopicStorage:
        by_qos: dict[int, Storage] = {}
        offline: bool | None = None
        for rule in self.rules:
            if not matches(rule.topic_filter, topic):
                continue
            if rule.storage is not None:
                for qos in rule.qos:
                    by_qos.setdefault(qos, rule.storage)
            if offline is None:
                offline = rule.offline
        storages = [by_qos.get(qos, default) for qos, default in enumerate(_DEFAULT)]
        mode = Mode.FILE if Storage.FILE in storages else Mode.MEMORY
        return TopicStorage((storages[0], storages[1], storages[2]), mode, self.offline if offline is None else offline)


class BrokerTopicMapping(TopicMapping):
    """A topic mapping that maps every valid MQTT topic to a shard.

    Topics that cannot be shard names (too long, control characters) share a few shards of the broker's own.
    """

    def rule_for(self, topic: str) -> MappingRule | None:
        return super().rule_for(topic) or (None if _can_name_shard(topic) else _LONG)

    def shards_for(self, topic_filter: str) -> tuple[str, ...]:
        targets = super().shards_for(topic_filter)
        if not is_filter(topic_filter) or any(covers(rule.topic_filter, topic_filter) for rule in self.rules):
            return targets
        return (*targets, _LONG.target)


@attrs.frozen(slots=True)
class Placement:
    """Where one message is stored.

    Attributes:
        shard: Name of the shard.
        topic: Value of the record's topic column; empty if the shard's name is the topic.
        config: Configuration of the shard, in case it has to be created.
        is_kept: Whether it is stored for longer than the delivery to connected subscribers takes.
    """

    shard: str
    topic: str
    config: ShardConfig
    is_kept: bool


class Placements:
    """Where messages are stored, according to both the storage rules and the topic mapping.

    Args:
        rules: Whether and how messages are kept.
        mapping: The shards of topics.
        create: Configuration with which a topic's shard is created, except for its mode.
    """

    def __init__(self, rules: StorageRules, mapping: TopicMapping, create: ShardConfig | None = None) -> None:
        self._rules = rules
        self._mapping = mapping
        self._create = create or ShardConfig()
        self._configs = {mode: attrs.evolve(self._create, mode=mode) for mode in Mode}
        self._known: dict[str, tuple[Placement, Placement, Placement]] = {}

    def replace_rules(self, rules: StorageRules) -> None:
        """Store messages by these rules from now on. Existing shards keep their mode."""
        self._rules = rules
        self._known.clear()

    def of(self, topic: str, qos: int, publisher: str) -> Placement:
        """Where a message is stored."""
        known = self._known.get(topic)
        if known is not None:
            return known[qos]
        placements, may_keep = self._decide(topic, publisher)
        if may_keep:
            if len(self._known) >= _CACHED_TOPICS:
                del self._known[next(iter(self._known))]
            self._known[topic] = placements
        return placements[qos]

    def _decide(self, topic: str, publisher: str) -> tuple[tuple[Placement, Placement, Placement], bool]:
        rule = self._mapping.rule_for(topic)
        shard = topic if rule is None else rule.shard_for(topic, publisher)
        of_topic = self._rules.of_topic(topic)
        kept = Placement(shard, "" if shard == topic else topic, self._configs[of_topic.mode], is_kept=True)
        live = Placement(live_shard_of(topic), topic, LIVE_CONFIG, is_kept=False)
        none = Storage.NONE
        at_0, at_1, at_2 = (live if storage is none else kept for storage in of_topic.by_qos)
        return (at_0, at_1, at_2), rule is None or rule.by == "topic"


def live_shard_of(topic: str) -> str:
    """The shard of a topic's messages that are not kept."""
    return f"{LIVE_PREFIX}/{crc32c(topic.encode()) % FOLDED_SHARDS}"


def live_topic_of(shard: str, named: str) -> str:
    """The topic of a record that is not kept; see `TopicMapping.topic_of`."""
    return named if named and live_shard_of(named) == shard else shard


def _can_name_shard(topic: str) -> bool:
    try:
        validate_shard_name(topic)
    except InvalidNameError:
        return False
    return True
