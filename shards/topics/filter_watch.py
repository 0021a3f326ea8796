"""Topic filters that wait for shards: each shard is matched when it publishes for the first time after a filter came.

So a filter that matches a million shards costs nothing for those that do not publish, and a shard that publishes all
the time is matched once for every filter.
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
    """Filters with the subscriptions that wait for matching shards.

    Args:
        recent: Records when each shard published last; an epoch begins with every filter.
    """

    def __init__(self, recent: PublishEpochs[Any]) -> None:
        self._recent = recent
        self._index: FilterIndex[Waiting] = FilterIndex()
        # The newest filters, each with the epoch that it began: a busy shard need not be matched against all others.
        self._newest: deque[tuple[int, str, Waiting]] = deque(maxlen=_REMEMBERED)
        self._all_since = 0

    def __len__(self) -> int:
        return len(self._index)

    def add(self, topic_filter: str, waiting: Waiting) -> None:
        """Add a waiting subscription; it is notified of every matching shard at the shard's next publish.

        Raises:
            InvalidNameError: The filter is not valid.
        """
        self._index.add(topic_filter, waiting)
        if len(self._newest) == _REMEMBERED:
            self._all_since = self._newest[0][0]
        self._newest.append((self._recent.begin_era(), topic_filter, waiting))

    def discard(self, topic_filter: str, waiting: Waiting) -> None:
        """Remove a waiting subscription."""
        self._index.discard(topic_filter, waiting)
        for at, (_, _, newcomer) in enumerate(self._newest):
            if newcomer is waiting:
                del self._newest[at]
                break

    def waiting_for(self, name: str, seen_in: int) -> Iterable[Waiting]:
        """The subscriptions to notify of a shard before it publishes, once each; some may have been notified before.

        Args:
            name: Name of the shard.
            seen_in: Number of the epoch in which it published last.
        """
        if seen_in < self._all_since:
            return dict.fromkeys(self._index.match(name))
        return [
            waiting
            for number, topic_filter, waiting in self._newest
            if number > seen_in and matches(topic_filter, name)
        ]
