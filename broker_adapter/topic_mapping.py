"""Which shard stores a topic's records, and in which shards a subscriber finds them.

By default a topic has a shard of the same name. A rule maps all topics that match its filter to a fixed number of
shards, by a hash that is the same on every broker. The first rule that matches a topic decides. A record in such a
shared shard carries its topic in its own column; elsewhere the column is empty and the topic is the shard's name. A
topic that the rules do not map to the record's shard is not believed: the right to append to one shard is no right to
publish to other topics. Rules do not move data: after a change older records stay where the old rules put them, and a
subscriber reads only the shards that the new rules name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import attrs

from shards.errors import InvalidRequestError
from shards.format.checksum import crc32c
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
