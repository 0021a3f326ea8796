"""The time of a node: a steady time of day, and append times that never go back in the node's whole history.

A high-water mark keeps append times from going back across restarts: a checkpoint records it in the views
(`journal.engine.state.node_record`), and recovery raises it to the times that it reads from the journal.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from journal.engine.time_slice import TimeSlice
from shards.seams.clock import Clock
from shards.seams.steady_clock import BACKWARD_HOLD_US, FORWARD_HOLD_US, SECOND_US, Jump, SteadyClock
from shards.seams.store import OrderedStore
from shards.views.shard_records import newest_append_times

_SAMPLE_INTERVAL_S: Final = 1.0
_WORTH_A_WARNING_US: Final = SECOND_US

_log = logging.getLogger("journal.node_time")


class NodeTime:
    """The clock of an engine; it is used instead of the system's clock.

    Args:
        clock: The system's clock.

    Attributes:
        newest_append_us: The high-water mark: no append time that was assigned is later.
    """

    def __init__(self, clock: Clock) -> None:
        self._steady = SteadyClock(clock)
        self.now_us = self._steady.now_us
        """The time of day in microseconds since 1970. It goes back only if the system's clock stays set back."""
        self.expiry_us = self._steady.expiry_us
        """The time at which records and state expire; see `SteadyClock.expiry_us`."""
        self.monotonic_us = clock.monotonic_us
        """Elapsed time in microseconds; see `Clock.monotonic_us`."""
        self.newest_append_us = 0

    def append_time_us(self) -> int:
        """The time for an append or a decision; never before an earlier one, across restarts of the node."""
        now_us = self.now_us()
        self.newest_append_us = max(self.newest_append_us, now_us)
        return self.newest_append_us

    @property
    def difference_us(self) -> int:
        """How far the system's clock is ahead of the node's time of day, in microseconds; negative if it is behind."""
        return self._steady.difference_us

    @property
    def append_time_ahead_us(self) -> int:
        """How long append times will not advance, as they must not go back, in microseconds; 0 if they advance."""
        return max(0, self.newest_append_us - self.now_us())

    # The high-water mark

    async def load(self, store: OrderedStore, recorded_us: int) -> None:
        """Read the recorded high-water mark.

        Args:
            store: The store of the views. Without a mark, which older versions did not record, the records of its
                segments are searched.
            recorded_us: The mark, 0 if there is none.
        """
        self.raise_to(recorded_us)
        if not recorded_us:
            step = TimeSlice()
            for append_time_us in newest_append_times(store):
                self.raise_to(append_time_us)
                if step.is_over:
                    await step.rest()

    def raise_to(self, append_time_us: int) -> None:
        """Raise the mark to an append time that is found in stored data."""
        self.newest_append_us = max(self.newest_append_us, append_time_us)

    def warn_if_behind(self) -> None:
        """Warn in the log if the clock is behind the mark: it was set back while the node was down, or is wrong."""
        behind_us = self.newest_append_us - self.now_us()
        if behind_us >= _WORTH_A_WARNING_US:
            _log.warning(
                "the system's clock is %.1f s behind the newest append time that is stored; append times do not "
                "advance until it has caught up. If the clock is wrong, set it right",
                behind_us / SECOND_US,
            )

    # Sampling

    async def run(self) -> None:
        """Compare with the system's clock once a second, until cancelled."""
        while True:
            await trio.sleep(_SAMPLE_INTERVAL_S)
            self.sample()

    def sample(self) -> None:
        """Compare with the system's clock once, and log changes."""
        jump = self._steady.sample()
        if jump is not None:
            _tell(jump)


def _tell(jump: Jump) -> None:
    is_forward = jump.difference_us > 0
    direction, seconds = "forward" if is_forward else "back", abs(jump.difference_us) / SECOND_US
    hold_s = (FORWARD_HOLD_US if is_forward else BACKWARD_HOLD_US) // SECOND_US
    if jump.outcome == "noticed":
        _log.warning(
            "the system's clock jumped %s by %.1f s; the node keeps its own time and follows the clock if the "
            "difference lasts for %d s%s",
            direction,
            seconds,
            hold_s,
            ": then records and state that have expired by the new time are deleted" if is_forward else "",
        )
    elif jump.outcome == "followed":
        _log.warning("the node's time follows the system's clock %s by %.1f s, after %d s", direction, seconds, hold_s)
    else:
        _log.warning("the system's clock is back at the node's time; its jump had no effect")
