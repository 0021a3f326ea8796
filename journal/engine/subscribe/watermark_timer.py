"""Wakes feeds that have nothing to give when there is something to tell: that they are further, or at their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from shards.subscriptions.watermark_policy import SOON_S


class Telling(Protocol):
    """A feed that tells how far it is.

    Attributes:
        until_lsn: Its last lsn, if it has one.
    """

    until_lsn: int | None

    def progress_due_at(self) -> float | None:
        """When it is to tell how far it is if it gives nothing else; None if there is nothing to tell."""

    def wake(self) -> None:
        """It has something to tell."""


class WatermarkTimer:
    """See the module; `run` is its task.

    Args:
        committed_lsn: Tells the lsn up to which everything is published.
    """

    def __init__(self, committed_lsn: Callable[[], int]) -> None:
        self._committed_lsn = committed_lsn
        self._feeds: dict[Telling, None] = {}
        # Those that were woken and have not been asked since: nobody would listen.
        self._woken: set[Telling] = set()
        self._ends: dict[Telling, int] = {}
        self._moved = trio.Event()

    def add(self, feed: Telling) -> None:
        """Wake this feed whenever it has something to tell, until it is discarded."""
        self._feeds[feed] = None
        if feed.until_lsn is not None:
            self._ends[feed] = feed.until_lsn
        self._moved.set()

    def taken(self, feed: Telling) -> None:
        """The feed was asked: wake it again from now on."""
        if feed in self._woken:
            self._woken.discard(feed)
            self._feeds[feed] = None
            self._moved.set()

    def look_again(self) -> None:
        """A feed that had nothing to tell may have something now, though no lsn was committed."""
        self._moved.set()

    def discard(self, feed: Telling) -> None:
        """It is over."""
        self._feeds.pop(feed, None)
        self._woken.discard(feed)
        self._ends.pop(feed, None)

    def committed(self) -> None:
        """The committed lsn has moved."""
        if self._feeds:
            self._moved.set()
        if self._ends:
            # Somebody waits for just that lsn: this may not take until the next turn of the clock.
            lsn = self._committed_lsn()
            for feed in [feed for feed, until_lsn in self._ends.items() if until_lsn <= lsn]:
                del self._ends[feed]
                feed.wake()

    async def run(self) -> None:
        """Work until cancelled; asleep while there is nothing to tell."""
        while True:
            # Made anew before looking: whatever comes after the look sets this one.
            self._moved = trio.Event()
            if self._wake_those_due():
                await trio.sleep(SOON_S)
            else:
                await self._moved.wait()

    def _wake_those_due(self) -> bool:
        """Wake who has something to tell now; return whether others will have later, without anything happening."""
        now = trio.current_time()
        later = False
        for feed in list(self._feeds):
            due_at = feed.progress_due_at()
            if due_at is not None and due_at <= now:
                del self._feeds[feed]
                self._woken.add(feed)
                feed.wake()
            elif due_at is not None:
                later = True
        return later
