"""Limits on the rate of records to a sink: a token bucket, and a slow start after an outage. Pure."""

from __future__ import annotations

import attrs

_BURST_S = 0.25
_FIRST_PART = 16


class RateLimit:
    """A token bucket of records.

    Args:
        records_per_s: The rate; 0 for no limit. The burst is a quarter of a second's worth, at least one record.
    """

    def __init__(self, records_per_s: float, now_s: float) -> None:
        self._rate = records_per_s
        self._burst = max(1.0, records_per_s * _BURST_S)
        self._tokens = self._burst
        self._last_s = now_s

    def take(self, count: int, now_s: float) -> float:
        """Take tokens for ``count`` records, and return how long to wait before they are sent, in seconds.

        More than the burst may be taken at once: the bucket goes below zero, and the wait makes up for it.
        """
        if not self._rate:
            return 0.0
        self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._rate)
        self._last_s = now_s
        self._tokens -= count
        return max(0.0, -self._tokens / self._rate)

    def give_back(self, count: int) -> None:
        """Undo a `take` of so many records that were not sent after all."""
        self._tokens += count


class SlowStart:
    """Size of batches: small at first, doubled after each batch that is accepted.

    Args:
        max_records: The full size.
    """

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self.records = max_records

    @property
    def is_over(self) -> bool:
        """Whether batches have their full size."""
        return self.records >= self._max_records

    def restart(self) -> None:
        """Begin again with small batches, after an outage."""
        self.records = max(1, self._max_records // _FIRST_PART)

    def succeeded(self) -> None:
        """Note that a batch was accepted."""
        self.records = min(self._max_records, self.records * 2)


@attrs.frozen(slots=True)
class Pace:
    """How fast records are sent to one sink, over all runs of its driver.

    Attributes:
        limit: The rate limit.
        slow_start: Limits the size of batches at first.
    """

    limit: RateLimit
    slow_start: SlowStart
