"""Shards that the server has stopped delivering to subscriptions by filter, and their log messages."""

from __future__ import annotations

import logging

from shards.errors import StorageError

_log = logging.getLogger(__name__)


class FailedShards:
    """Records which shards the server has stopped delivering, across connections.

    Attributes:
        count: Number of shards that are not delivered to at least one subscription now.
    """

    def __init__(self) -> None:
        self._lacking: dict[str, set[int]] = {}
        self._told: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._lacking)

    def failed(self, name: str, error: StorageError, subscription: int) -> None:
        """Note that a subscription gets nothing more of a shard; only the first time is logged."""
        self._lacking.setdefault(name, set()).add(subscription)
        if name not in self._told:
            self._told.add(name)
            _log.error("shard %r is not delivered any more, other shards are: %s", name, error)

    def delivered(self, name: str, subscription: int) -> None:
        """Note that a subscription gets the shard again, or that the shard was deleted."""
        lacking = self._lacking.get(name)
        if lacking is not None:
            lacking.discard(subscription)
            if not lacking:
                del self._lacking[name]

    def ended(self, subscription: int) -> None:
        """Note that a subscription has ended."""
        for name in list(self._lacking):
            self.delivered(name, subscription)

    def connected(self) -> None:
        """Note a new connection: every shard is subscribed again, and logged again if it still fails."""
        self._told.clear()
