"""How long somebody who failed has to wait before the next try counts. Pure: the clock is the caller's."""

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
    """Remembers who failed, the most recent ones.

    Args:
        free_failures: So many cost no time.
        first_s: The wait after the next one; it doubles with each that follows.
        longest_s: It grows no further. Who has not failed for so long after a wait begins anew.
        max_entries: Of so many who failed is anything known; then the one who failed longest ago is forgotten.
    """

    def __init__(self, *, free_failures: int, first_s: float, longest_s: float, max_entries: int = 10_000) -> None:
        self._free_failures = free_failures
        self._delays = BackOff(first_s, longest_s, jitter=0.0)
        self._max_entries = max_entries
        self._entries: OrderedDict[Hashable, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def must_wait(self, who: Hashable, now: float) -> bool:
        """Whether it is too early for another try."""
        failures = self._entries.get(who)
        return failures is not None and now < failures.until

    def failed(self, who: Hashable, now: float) -> None:
        """Take note of a failure."""
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
        """Forget what failures there were."""
        self._entries.pop(who, None)
