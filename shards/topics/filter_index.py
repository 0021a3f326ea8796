"""Two indexes that find each other's kind: filters that match a topic, and topics that a filter matches.

`FilterIndex` is used for every new shard and routed message, so it is fast: a table of filters without wildcards and a
trie of those with wildcards. `TopicIndex` is used when a subscription or listing begins, so it is small: a sorted list.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from sortedcontainers import SortedList

from shards.topics.topic_filters import is_filter, literal_prefix, pattern, validate_filter

Value = TypeVar("Value", bound=Hashable)


class _Node(Generic[Value]):
    """A node of the trie.

    Attributes:
        levels: Child nodes by literal level.
        any_level: Child node for a ``+``.
        ends: Values of filters that end here.
        rest: Values of filters that continue with ``#`` from here.
    """

    __slots__ = ("any_level", "ends", "levels", "rest")

    def __init__(self) -> None:
        self.levels: dict[str, _Node[Value]] = {}
        self.any_level: _Node[Value] | None = None
        self.ends: dict[Value, None] | None = None
        self.rest: dict[Value, None] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.levels or self.any_level or self.ends or self.rest)


class FilterIndex(Generic[Value]):
    """Filters, each with any number of values; not thread-safe. A pair of filter and value is stored once."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Value, None]] = {}
        self._root: _Node[Value] = _Node()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of pairs of filter and value."""
        return self._size

    @property
    def is_empty(self) -> bool:
        """Whether it is empty, including nodes of the trie of removed filters."""
        return not self._exact and self._root.is_empty

    def add(self, topic_filter: str, value: Value) -> bool:
        """Add a value under a filter; returns whether it was not there before.

        Raises:
            InvalidNameError: The filter is not valid.
        """
        validate_filter(topic_filter)
        held = self._add_path(topic_filter) if is_filter(topic_filter) else self._exact.setdefault(topic_filter, {})
        if value in held:
            return False
        held[value] = None
        self._size += 1
        return True

    def _add_path(self, topic_filter: str) -> dict[Value, None]:
        node = self._root
        for level in topic_filter.split("/"):
            if level == "#":
                node.rest = {} if node.rest is None else node.rest
                return node.rest
            if level == "+":
                node.any_level = node.any_level or _Node()
                node = node.any_level
            else:
                node = node.levels.get(level) or node.levels.setdefault(level, _Node())
        node.ends = {} if node.ends is None else node.ends
        return node.ends

    def discard(self, topic_filter: str, value: Value) -> bool:
        """Remove a value of a filter; returns whether it was there. Its memory is freed."""
        if not is_filter(topic_filter):
            held = self._exact.get(topic_filter, {})
            if value not in held:
                return False
            del held[value]
            if not held:
                del self._exact[topic_filter]
        elif not self._discard_path(topic_filter, value):
            return False
        self._size -= 1
        return True

    def _discard_path(self, topic_filter: str, value: Value) -> bool:
        levels = topic_filter.split("/")
        is_rest = levels[-1] == "#"
        if is_rest:
            del levels[-1]
        path = [self._root]
        for level in levels:
            node = path[-1].any_level if level == "+" else path[-1].levels.get(level)
            if node is None:
                return False
            path.append(node)
        last = path[-1]
        held = last.rest if is_rest else last.ends
        if held is None or value not in held:
            return False
        del held[value]
        if not held and is_rest:
            last.rest = None
        elif not held:
            last.ends = None
        while levels and path[-1].is_empty:
            path.pop()
            level = levels.pop()
            if level == "+":
                path[-1].any_level = None
            else:
                del path[-1].levels[level]
        return True

    def match(self, topic: str) -> list[Value]:
        """Return the values of all filters that match the topic, a value once for each of its matching filters."""
        found: list[Value] = list(self._exact.get(topic, ()))
        levels = topic.split("/")
        root = self._root
        if topic.startswith("$"):
            # A wildcard in the first level must not match, so the walk begins one level down.
            first = root.levels.get(levels.pop(0))
            nodes = [] if first is None else [first]
        else:
            nodes = [root]
        for level in levels:
            below: list[_Node[Value]] = []
            for node in nodes:
                if node.rest is not None:
                    found += node.rest
                if (child := node.levels.get(level)) is not None:
                    below.append(child)
                if (child := node.any_level) is not None:
                    below.append(child)
            if not below:
                return found
            nodes = below
        for node in nodes:
            if node.rest is not None:
                found += node.rest
            if node.ends is not None:
                found += node.ends
        return found


class TopicIndex:
    """A sorted set of topics (shard names) that finds those that a filter matches; not thread-safe.

    Only topics with the filter's literal prefix are compared. A filter that begins with a wildcard is compared with all
    of them, at the speed of a regular expression.
    """

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._topics: SortedList[str] = SortedList(set(topics))

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def add(self, topic: str) -> None:
        """Add a topic."""
        if topic not in self._topics:
            self._topics.add(topic)

    def discard(self, topic: str) -> None:
        """Remove a topic."""
        self._topics.discard(topic)

    def match(self, topic_filter: str, *, after: str = "", limit: int | None = None) -> list[str]:
        """Return the topics that the filter matches, sorted by code point.

        Args:
            after: Only topics that sort after it, to continue after an earlier result.
            limit: Largest number of topics.

        Raises:
            InvalidNameError: The filter is not valid.
        """
        validate_filter(topic_filter)
        looked_at = self._looked_at(topic_filter, after)
        return list(islice(_only_matching(topic_filter, looked_at), limit))

    def scan(self, topic_filter: str, after: str, most: int) -> tuple[list[str], str | None]:
        """Compare ``most`` of the topics after ``after``, whether they match or not.

        Returns:
            The matching topics, sorted, and the topic after which to continue; None when all have been compared. Topics
            may be added and removed in between.

        Raises:
            InvalidNameError: The filter is not valid.
        """
        validate_filter(topic_filter)
        looked_at = list(islice(self._looked_at(topic_filter, after), most))
        return list(_only_matching(topic_filter, looked_at)), looked_at[-1] if len(looked_at) == most else None

    def count_looked_at(self, topic_filter: str) -> int:
        """Approximate number of topics that `match` compares: those with the literal prefix of the filter."""
        prefix = literal_prefix(topic_filter)
        if not prefix:
            return len(self._topics)
        if prefix == topic_filter:
            return 1
        return self._topics.bisect_left(f"{prefix[:-1]}0") - self._topics.bisect_left(prefix) + 1

    def _looked_at(self, topic_filter: str, after: str) -> Iterator[str]:
        """The topics after ``after`` that may match, sorted: those with the literal prefix of the filter."""
        prefix = literal_prefix(topic_filter)
        if prefix == topic_filter:
            if prefix > after and prefix in self._topics:
                yield prefix
            return
        parent = prefix[:-1]
        if prefix and topic_filter == f"{prefix}#" and parent > after and parent in self._topics:
            yield parent
        # "0" is the character after "/": exactly the topics with the prefix are in between.
        end = f"{parent}0" if prefix else None
        if end is not None and after >= end:
            return
        start_is_new = prefix > after
        yield from self._topics.irange(prefix if start_is_new else after, end, (start_is_new, False))


def _only_matching(topic_filter: str, topics: Iterable[str]) -> Iterable[str]:
    """The matching ones of topics that have the literal prefix of the filter."""
    prefix = literal_prefix(topic_filter)
    if prefix and topic_filter in (prefix, f"{prefix}#"):
        return topics
    return filter(pattern(topic_filter).fullmatch, topics)
