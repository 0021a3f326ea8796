"""Whether an owner is isolated: it reaches neither the log store nor the servers that follow it.

Then one of these may own the store, without a way to inform it. The log is safe: the next owner has put a fence into
the place of the next slot. But what an isolated owner acknowledges in memory mode is not in the log of the next one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from shards.errors import LogUnavailableError

ISOLATED_S: Final = 3.0
"""After so long without an answer of its owner another server takes the store over
(`journal.server.cluster.takeover`). It asks the owner, and the owner looks at the claims, more often than that."""

FOLLOWED_S: Final = 10.0
"""A server that has asked the owner in this time before the log store was last reached may be the next owner. If it has
not, it would have claimed the store before."""


class Isolation:
    """When an owner last knew that it owns the store, and was last asked by a follower.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owned_at = -math.inf
        self._followed_at = -math.inf

    def begin(self) -> None:
        """This server has become the owner, and knows of no other server."""
        self._owned_at, self._followed_at = self._clock(), -math.inf

    def now(self) -> float:
        """The present, for `owned`."""
        return self._clock()

    def owned(self, at: float) -> None:
        """The claims have been read: no other server owned the store at this time."""
        self._owned_at = at

    def followed(self) -> None:
        """A server that follows this one has asked it whether it is alive."""
        self._followed_at = self._clock()

    @property
    def error(self) -> LogUnavailableError | None:
        """The error for appends in memory mode; None as long as this server is not isolated. Read for every chunk."""
        now = self._clock()
        if now - self._owned_at < ISOLATED_S or now - self._followed_at < ISOLATED_S:
            return None
        if self._followed_at < self._owned_at - FOLLOWED_S:
            # No other server is there. It would be of no use to refuse anything.
            return None
        return LogUnavailableError(
            f"this server has reached neither the log store nor another server of the store for {ISOLATED_S:g} s, so "
            "it is not known whether it still owns the store. Appends in memory mode are accepted again when it is "
            "known; reads continue, and may be old"
        )
