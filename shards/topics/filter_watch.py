"""Topic filters that wait for shards: each shard is matched when it publishes for the first time since a filter came.

So a filter that matches a million shards costs nothing for those that stay silent, and a shard that publishes all the
time is matched once for every filter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

from shards.topics.filter_index import FilterIndex
from shards.topics.publish_epochs import PublishEpochs
from shards.topics.topic_filters import matches

_REMEMBERED = 16

Waiting = TypeVar("Waiting", bound=Hashable)


class FilterWatch(Generic[Waiting]):
    """Filters, each with what waits for its shards.

    Args:
        recent: Knows when each shard published last; it begins an era with every filter.
    """

    def __init__(self, recent: PublishEpochs[Any]) -> None:
        self._recent = recent
        self._index: FilterIndex[Waiting] = FilterIndex()
        # The last to come, with the era that each began: a busy shard need not be matched against all the others.
        self._newcomers: deque[tuple[int, str, Waiting]] = deque(maxlen=_REMEMBERED)
        self._all_since = 0

    def __len__(self) -> int:
        return len(self._index)

    def add(self, topic_filter: str, waiting: Waiting) -> None:
        """Have something wait; every shard that matches is told at its next publish.

        Raises:
            InvalidNameError: The filter is not valid.
        """
        self._index.add(topic_filter, waiting)
        if len(self._newcomers) == _REMEMBERED:
            self._all_since = self._newcomers[0][0]
        self._newcomers.append((self._recent.begin_era(), topic_filter, waiting))

    def discard(self, topic_filter: str, waiting: Waiting) -> None:
        """Have it wait no longer."""
        self._index.discard(topic_filter, waiting)
        for at, (_, _, newcomer) in enumerate(self._newcomers):
            if newcomer is waiting:
                del self._newcomers[at]
                break

    def waiting_for(self, name: str, seen_in: int) -> Iterable[Waiting]:
        """Who is to be told of a shard that is about to publish, once each; some may have been told before.

        Args:
            name: Of the shard.
            seen_in: Number of the era in which it published last.
        """
        if seen_in < self._all_since:
            return dict.fromkeys(self._index.match(name))
        return [
            waiting
            for number, topic_filter, waiting in self._newcomers
            if number > seen_in and matches(topic_filter, name)
        ]
