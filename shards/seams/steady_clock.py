"""The time of day of one process, which does not follow a wrong sample of the system's clock.

Pure: it only reads the given `Clock`. Other modules take the samples and write the log.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from shards.seams.clock import Clock

SECOND_US: Final = 1_000_000

JUMP_US: Final = SECOND_US
"""A difference to the system's clock of this size or more is a jump; a smaller one is drift, corrected gradually."""

SLEW_DIVISOR: Final = 200
"""Drift is corrected by at most this share of the elapsed time: 5 ms a second, ten times as much as NTP."""

BACKWARD_HOLD_US: Final = 10 * SECOND_US
"""A jump back is followed when it has lasted for this time."""

FORWARD_HOLD_US: Final = 600 * SECOND_US
"""A jump forward is followed when it has lasted for this time: then data expires, which is final."""

LEAST_SAMPLES: Final = 3
"""A jump is followed only when this many samples agree on it."""


@attrs.frozen(slots=True)
class Jump:
    """What a sample found out about a jump of the system's clock.

    Attributes:
        outcome: ``noticed`` when it is first seen, ``followed`` when it has lasted, ``taken back`` when the system's
            clock agrees again before that.
        difference_us: How far the system's clock is ahead of the steady time; negative when it is behind.
    """

    outcome: Literal["noticed", "followed", "taken back"]
    difference_us: int


class SteadyClock:
    """Time of day that moves with the elapsed time, and follows the system's clock when that differs for long.

    The first sample is taken over. After it the time is that sample plus the elapsed time since then. `sample` compares
    it with the system's clock: small differences are corrected gradually, large ones only when they last.
    Invariant: between two calls `now_us` never goes back, except after a jump back that `sample` has followed.

    Args:
        clock: The system's clock.

    Attributes:
        difference_us: How far the system's clock was ahead at the last sample; negative when it was behind.
        followed_jumps: Jumps that were followed since the start.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic_us = clock.monotonic_us
        self._sampled_us = clock.monotonic_us()
        self._offset_us = clock.now_us() - self._sampled_us
        self._newest_us = 0
        self._jump_us = 0
        self._jump_since_us = 0
        self._jump_samples = 0
        self.difference_us = 0
        self.followed_jumps = 0

    def now_us(self) -> int:
        """Return the steady time in microseconds since the epoch; takes less than a microsecond."""
        now_us = self._monotonic_us() + self._offset_us
        if now_us < self._newest_us:
            return self._newest_us
        self._newest_us = now_us
        return now_us

    def monotonic_us(self) -> int:
        """Return elapsed time; see `Clock.monotonic_us`."""
        return self._monotonic_us()

    def expiry_us(self) -> int:
        """Return the time at which things expire: the steady time or the system's, whichever is earlier.

        So nothing expires early because of a clock that jumped forward for less than `FORWARD_HOLD_US`, and data that
        is stored right after a jump back, with a time to live computed from the new time, has not expired already.
        """
        return min(self.now_us(), self._clock.now_us())

    def sample(self) -> Jump | None:
        """Compare with the system's clock and correct or follow it. Call it about once a second.

        Returns:
            News about a jump; None if there is none.
        """
        monotonic_us = self._monotonic_us()
        elapsed_us, self._sampled_us = monotonic_us - self._sampled_us, monotonic_us
        difference_us = self.difference_us = self._clock.now_us() - monotonic_us - self._offset_us
        if abs(difference_us) < JUMP_US:
            most_us = elapsed_us // SLEW_DIVISOR
            self._offset_us += max(-most_us, min(most_us, difference_us))
            was_jump, self._jump_samples = self._jump_samples > 0, 0
            return Jump("taken back", difference_us) if was_jump else None
        is_new = not self._jump_samples
        if is_new or abs(difference_us - self._jump_us) >= JUMP_US:
            # Samples that disagree with each other prove nothing: counting begins again.
            self._jump_us, self._jump_since_us, self._jump_samples = difference_us, monotonic_us, 0
        self._jump_samples += 1
        hold_us = FORWARD_HOLD_US if difference_us > 0 else BACKWARD_HOLD_US
        if self._jump_samples >= LEAST_SAMPLES and monotonic_us - self._jump_since_us >= hold_us:
            self._offset_us += difference_us
            self._newest_us = 0
            self._jump_samples = 0
            self.difference_us = 0
            self.followed_jumps += 1
            return Jump("followed", difference_us)
        return Jump("noticed", difference_us) if is_new else None
