"""Delays after failed logins. Pure: the caller provides the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

import attrs

from shards.back_off import BackOff


@attrs.define(slots=True)
class _Failures:
    count: int = 0
    until: float = 0.0


class FailedAttempts:
    """Remembers the most recent failures.

    Args:
        free_failures: Number of failures without a delay.
        first_s: The delay after the next one, in seconds; it doubles with each later one.
        longest_s: The longest delay. Without a failure for this time after a delay, the count begins again.
        max_entries: Number of remembered subjects; beyond it the one with the oldest failure is forgotten.
    """

    def __init__(self, *, free_failures: int, first_s: float, longest_s: float, max_entries: int = 10_000) -> None:
        self._free_failures = free_failures
        self._delays = BackOff(first_s, longest_s, jitter=0.0)
        self._max_entries = max_entries
        self._entries: OrderedDict[Hashable, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def must_wait(self, who: Hashable, now: float) -> bool:
        """Whether it is too early for another attempt."""
        failures = self._entries.get(who)
        return failures is not None and now < failures.until

    def failed(self, who: Hashable, now: float) -> None:
        """Record a failure."""
        failures = self._entries.pop(who, None)
        if failures is None or now > failures.until + self._delays.longest_s:
            failures = _Failures()
        failures.count += 1
        waits = failures.count - self._free_failures
        failures.until = now + (self._delays.delay_s(waits - 1) if waits > 0 else 0.0)
        self._entries[who] = failures
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def succeeded(self, who: Hashable) -> None:
        """Forget the failures."""
        self._entries.pop(who, None)
