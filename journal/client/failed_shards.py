"""Which shards the server delivers no more to subscriptions by filter, and the word about each in the log."""

from __future__ import annotations

import logging

from shards.errors import StorageError

_log = logging.getLogger(__name__)


class FailedShards:
    """What subscriptions note of shards that the server stopped delivering, over one connection after another.

    Attributes:
        count: Shards that at least one subscription lacks now.
    """

    def __init__(self) -> None:
        self._lacking: dict[str, set[int]] = {}
        self._told: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._lacking)

    def failed(self, name: str, error: StorageError, subscription: int) -> None:
        """A subscription gets nothing more of a shard; the first one is told in the log."""
        self._lacking.setdefault(name, set()).add(subscription)
        if name not in self._told:
            self._told.add(name)
            _log.error("shard %r is delivered no more, other shards are: %s", name, error)

    def delivered(self, name: str, subscription: int) -> None:
        """A subscription gets the shard again, or the shard was deleted."""
        lacking = self._lacking.get(name)
        if lacking is not None:
            lacking.discard(subscription)
            if not lacking:
                del self._lacking[name]

    def ended(self, subscription: int) -> None:
        """A subscription is over."""
        for name in list(self._lacking):
            self.delivered(name, subscription)

    def connected(self) -> None:
        """A new connection: every shard is asked for again, and told again if it still fails."""
        self._told.clear()
