"""Delivery latency: from the broker that received a message to the subscribers at this broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram
from shards.format.record import Gap, StoredRecord
from shards.seams.clock import Clock

_MICROSECONDS: Final = 1_000_000


class Latencies:
    """Records one latency for all records that the store delivers at once, that of the oldest one.

    Args:
        clock: The present time. A record has the time of the broker that received it; if that broker's clock is ahead,
            the latency counts as 0.

    Attributes:
        seconds: Histogram of the latencies, in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = Histogram(DURATION_BOUNDS_S)

    def note(self, records: Sequence[StoredRecord | Gap]) -> None:
        """These records were handed out to at least one subscriber."""
        oldest = records[0]
        if not isinstance(oldest, Gap) and oldest.timestamp_us:
            self.seconds.observe(max(0, self._clock.now_us() - oldest.timestamp_us) / _MICROSECONDS)
