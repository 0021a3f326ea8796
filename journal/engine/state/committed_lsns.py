"""The lsn up to which everything is published: by the owner of a store, or by a follower of its log.

Subscriptions need this lsn and nothing else of a committer, so they work in both. When a follower takes its store over,
the source is replaced, and those that use the lsns go on.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import trio


class LsnSource(Protocol):
    """Where the lsns come from: the committer of an owner, or what a follower has folded.

    Attributes:
        next_lsn: Everything that is published has a lower lsn.
        committed_lsn: Everything up to this lsn is published.
    """

    next_lsn: int
    committed_lsn: int


@attrs.define(slots=True)
class FoldedLsns:
    """How far a follower has folded the log; see `LsnSource`."""

    next_lsn: int
    committed_lsn: int


class CommittedLsns:
    """See the module.

    Args:
        source: Tells the lsns.
        is_followed: It is a follower: the owner of the store, and other followers, may have published more.

    Attributes:
        is_followed: The same now.
    """

    def __init__(self, source: LsnSource, *, is_followed: bool = False) -> None:
        self._source = source
        self._waiting = trio.lowlevel.ParkingLot()
        self.is_followed = is_followed

    def committed_lsn(self) -> int:
        """Every entry up to this lsn is durable and published, and so is every memory-mode batch that is here."""
        return self._source.committed_lsn

    def next_lsn(self) -> int:
        """Everything that is published has a lower lsn."""
        return self._source.next_lsn

    def moved(self) -> None:
        """The follower has published more: `wait_to_have` looks again."""
        self._waiting.unpark_all()

    def take_over(self, source: LsnSource) -> None:
        """The server owns the store now, and publishes itself.

        REQUIRES: neither lsn is lower than before.
        """
        self._source, self.is_followed = source, False
        self.moved()

    async def wait_to_have(self, lsn: int) -> None:
        """Return when everything up to this lsn is published, or when this server owns the store and has all of it."""
        while self.is_followed and self._source.committed_lsn < lsn:
            await self._waiting.park()
