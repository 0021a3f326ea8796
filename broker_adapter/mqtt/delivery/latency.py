"""How long messages are on their way, from the broker that received them to those who subscribed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram
from shards.format.record import Gap, StoredRecord
from shards.seams.clock import Clock

_MICROSECONDS: Final = 1_000_000


class Latencies:
    """Takes one time for all that the store brings at once, that of its oldest record.

    Args:
        clock: Read here; the record was stamped by the clock of the broker that received it. Where that one is ahead,
            a delay counts as none.

    Attributes:
        seconds: The times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = Histogram(DURATION_BOUNDS_S)

    def note(self, records: Sequence[StoredRecord | Gap]) -> None:
        """These were handed out to somebody."""
        oldest = records[0]
        if not isinstance(oldest, Gap) and oldest.timestamp_us:
            self.seconds.observe(max(0, self._clock.now_us() - oldest.timestamp_us) / _MICROSECONDS)
