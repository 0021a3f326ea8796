"""How long one client waits for the acknowledgements of what it publishes. Pure.

One time is kept for all publishes that one receive brought, not one for each message.
"""

from __future__ import annotations

from collections import deque

from journal.telemetry.histogram import Histogram


class AcknowledgementTimes:
    """Measures the time from each receive of one connection until all publishes in it are answered.

    Args:
        histogram: Where the times are counted, in seconds.
    """

    __slots__ = ("_answered_count", "_histogram", "_received_count", "_waiting")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._received_count = 0
        self._answered_count = 0
        # (number of its last publish, when it came) of receives that wait, oldest first.
        self._waiting: deque[tuple[int, float]] = deque()

    def received(self, count: int, now_s: float, *, is_answered: bool) -> None:
        """One receive brought ``count`` publishes.

        Args:
            is_answered: The last of them is to be answered: its QoS is 1 or 2.
        """
        self._received_count += count
        if is_answered:
            self._waiting.append((self._received_count, now_s))

    def answered(self, count: int, now_s: float) -> None:
        """The next ``count`` publishes, in order of receipt, are finished; those of QoS 0 count as well."""
        self._answered_count += count
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._answered_count:
            self._histogram.observe(now_s - waiting.popleft()[1])
