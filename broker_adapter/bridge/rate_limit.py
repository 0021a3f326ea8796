"""How fast a sink is given records: a rate limit, and a careful beginning after an outage. Pure."""

from __future__ import annotations

_BURST_S = 0.25
_FIRST_PART = 16


class RateLimit:
    """A token bucket of records.

    Args:
        records_per_s: The rate; 0 for none. A quarter of a second's worth may be used at once.
    """

    def __init__(self, records_per_s: float, now_s: float) -> None:
        self._rate = records_per_s
        self._burst = max(1.0, records_per_s * _BURST_S)
        self._tokens = self._burst
        self._last_s = now_s

    def take(self, count: int, now_s: float) -> float:
        """Use up so many records, and return how long to wait before they are sent, in seconds.

        More than the burst may be taken at once: what is owed is waited for.
        """
        if not self._rate:
            return 0.0
        self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._rate)
        self._last_s = now_s
        self._tokens -= count
        return max(0.0, -self._tokens / self._rate)


class SlowStart:
    """How large batches may be: small ones first, doubling with each that is taken.

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
        """The sink was out."""
        self.records = max(1, self._max_records // _FIRST_PART)

    def succeeded(self) -> None:
        """A batch was taken."""
        self.records = min(self._max_records, self.records * 2)
