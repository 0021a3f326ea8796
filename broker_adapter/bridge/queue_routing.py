"""Routing of messages to cache queues, by topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker_adapter.cache_queue import QueueWriter
from shards.topics.topic_filters import matches

_KNOWN_TOPICS: Final = 100_000


class QueueRouting:
    """The writers of all bridges of one process.

    Args:
        writers: The topic filters and the writer of each bridge.
    """

    def __init__(self, writers: Iterable[tuple[tuple[str, ...], QueueWriter]] = ()) -> None:
        self._writers = tuple(writers)
        self._known: dict[str, tuple[QueueWriter, ...]] = {}

    def replace(self, writers: Iterable[tuple[tuple[str, ...], QueueWriter]]) -> None:
        """Use these writers from now on."""
        self._writers = tuple(writers)
        self._known.clear()

    def __bool__(self) -> bool:
        return bool(self._writers)

    def queues_for(self, topic: str) -> tuple[QueueWriter, ...]:
        """The writers of the queues that take messages of a topic."""
        found = self._known.get(topic)
        if found is None:
            found = tuple(writer for filters, writer in self._writers if any(matches(each, topic) for each in filters))
            if len(self._known) >= _KNOWN_TOPICS:
                del self._known[next(iter(self._known))]
            self._known[topic] = found
        return found


NO_QUEUES: Final = QueueRouting()
