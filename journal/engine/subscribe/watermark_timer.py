"""Wakes subscriptions that have no records to deliver when they can report progress or their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from shards.subscriptions.watermark_policy import SOON_S


class ProgressReporter(Protocol):
    """A subscription that reports its progress.

    Attributes:
        until_lsn: Its last lsn, if it has one.
    """

    until_lsn: int | None

    def progress_due_at(self) -> float | None:
        """When progress is to be reported if nothing else is delivered; None if there is none to report."""

    def wake(self) -> None:
        """Called when it has something to report."""


class WatermarkTimer:
    """See the module; `run` is its task.

    Args:
        committed_lsn: Returns the lsn up to which everything is published.
    """

    def __init__(self, committed_lsn: Callable[[], int]) -> None:
        self._committed_lsn = committed_lsn
        self._feeds: dict[ProgressReporter, None] = {}
        # Subscriptions that were woken and not pulled since: waking them again would have no effect.
        self._woken: set[ProgressReporter] = set()
        self._ends: dict[ProgressReporter, int] = {}
        self._moved = trio.Event()

    def add(self, feed: ProgressReporter) -> None:
        """Wake this subscription whenever it has something to report, until `discard`."""
        self._feeds[feed] = None
        if feed.until_lsn is not None:
            self._ends[feed] = feed.until_lsn
        self._moved.set()

    def taken(self, feed: ProgressReporter) -> None:
        """Note that the subscription was pulled: it may be woken again."""
        if feed in self._woken:
            self._woken.discard(feed)
            self._feeds[feed] = None
            self._moved.set()

    def look_again(self) -> None:
        """Note that a subscription may have something to report now although no lsn was committed."""
        self._moved.set()

    def discard(self, feed: ProgressReporter) -> None:
        """Remove a subscription that has ended."""
        self._feeds.pop(feed, None)
        self._woken.discard(feed)
        self._ends.pop(feed, None)

    def committed(self) -> None:
        """Note that the committed lsn has advanced."""
        if self._feeds:
            self._moved.set()
        if self._ends:
            # A subscription waits for exactly this lsn: waking it must not wait for the next interval.
            lsn = self._committed_lsn()
            for feed in [feed for feed, until_lsn in self._ends.items() if until_lsn <= lsn]:
                del self._ends[feed]
                feed.wake()

    async def run(self) -> None:
        """Work until cancelled; asleep while there is nothing to report."""
        while True:
            # Created before the check, so that everything after the check sets it.
            self._moved = trio.Event()
            if self._wake_those_due():
                await trio.sleep(SOON_S)
            else:
                await self._moved.wait()

    def _wake_those_due(self) -> bool:
        """Wake subscriptions that are due; return whether others will be due later without any further event."""
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
