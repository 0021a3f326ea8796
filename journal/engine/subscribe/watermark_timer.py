"""When subscriptions report progress: the policy, and the timer that wakes those that have no records to deliver."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import trio

SOON_S = 0.05
"""Interval of reports after everything was delivered, and the shortest one."""

BUSY_S = 0.5
"""Interval while there is always more to deliver."""

QUIET_S = 1.0
"""Interval while only others' records arrive: the lsn rises, and a resume should not have to go far back."""


class WatermarkPolicy:
    """Decides when to report progress: soon after something was delivered, seldom while there is nothing.

    Times are in seconds of the caller's clock.

    Attributes:
        told_lsn: The lsn that was reported last.
    """

    __slots__ = ("_gave", "_pause_s", "_told_at", "told_lsn")

    def __init__(self, start_lsn: int) -> None:
        self.told_lsn = start_lsn
        self._told_at = -math.inf
        self._pause_s = SOON_S
        self._gave = False

    def gave(self) -> None:
        """Note that something was delivered."""
        self._gave = True

    def due_at(self, *, idle: bool) -> float:
        """The time from which an lsn above `told_lsn` is to be reported; ``idle``: there is nothing to deliver now."""
        if not idle:
            return self._told_at + BUSY_S
        return self._told_at + (SOON_S if self._gave else self._pause_s)

    def tell(self, lsn: int, now: float) -> int:
        """Note that an lsn is reported now; returns it."""
        self._pause_s = SOON_S if self._gave else min(2 * self._pause_s, QUIET_S)
        self._gave = False
        self._told_at = now
        self.told_lsn = lsn
        return lsn


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
