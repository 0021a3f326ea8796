"""Sending at a fixed rate, whatever the answers do: each message has its time, and is late if the sender is.

Measured from these times, a system that stalls is not spared the messages that it kept from being sent.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

_SECOND_NS: Final = 1_000_000_000
_TFD_TIMER_ABSTIME: Final = 1
# Interval and time of the next expiry, each in seconds and nanoseconds.
_TIMER: Final = struct.Struct("@llll")


@attrs.frozen(slots=True)
class Schedule:
    """The times of messages at a constant rate.

    Attributes:
        begin_ns: Time of the first one, of the system's clock.
        rate_per_s: Messages a second.
        count: Number of messages.
    """

    begin_ns: int
    rate_per_s: float
    count: int

    def time_ns(self, number: int) -> int:
        """When a message is due."""
        return self.begin_ns + int(number * _SECOND_NS / self.rate_per_s)

    def due(self, now_ns: int) -> int:
        """Number of the messages that are due by now."""
        elapsed_ns = now_ns - self.begin_ns
        if elapsed_ns < 0:
            return 0
        due = min(self.count, int(elapsed_ns * self.rate_per_s / _SECOND_NS) + 1)
        # Rounding: what is due and when must agree.
        while due and self.time_ns(due - 1) > now_ns:
            due -= 1
        while due < self.count and self.time_ns(due) <= now_ns:
            due += 1
        return due


class Alarm:
    """Wakes a task at a time of the system's clock, to within tens of microseconds.

    The event loop would round a sleep to whole milliseconds.
    """

    def __init__(self, descriptor: int, library: ctypes.CDLL) -> None:
        self._descriptor = descriptor
        self._library = library

    async def wait_until(self, time_ns: int) -> None:
        """Wait until this time; one that is past is waited for as well, as a checkpoint."""
        spec = ctypes.create_string_buffer(_TIMER.pack(0, 0, *divmod(max(time_ns, 1), _SECOND_NS)))
        if self._library.timerfd_settime(self._descriptor, _TFD_TIMER_ABSTIME, spec, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        await trio.lowlevel.wait_readable(self._descriptor)


@contextmanager
def alarm() -> Iterator[Alarm]:
    """An alarm for the length of the block (Linux)."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.timerfd_create(time.CLOCK_REALTIME, os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield Alarm(descriptor, library)
    finally:
        os.close(descriptor)


async def send_on_schedule(schedule: Schedule, send: Callable[[int], None], alarm: Alarm) -> None:
    """Call ``send`` with the number of each message once it is due, in order; those that are late at once."""
    sent = 0
    while sent < schedule.count:
        await alarm.wait_until(schedule.time_ns(sent))
        due = schedule.due(time.time_ns())
        while sent < due:
            send(sent)
            sent += 1
