"""Loads of marked messages over a link: as many as it takes, to find the highest rate, and at a fixed rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import attrs
import trio

from journal.trace.journal_frames import Times
from journal.trace.marker import Marker
from journal.trace.schedule import Schedule, alarm, send_on_schedule

_WARM_UP_S: Final = 0.5
_SEARCH_S: Final = 1.5
_TRIAL_S: Final = 1.0
_MOST_TRIALS: Final = 12
# Of a trial, how much longer than its schedule it may take; and by how much the next rate is lower at least.
_LATE: Final = 1.1
_LOWER: Final = 0.9
_BEGIN_AFTER_NS: Final = 20_000_000
_LAST_WITHIN_S: Final = 30.0


class LoadError(Exception):
    """A load was not carried out; the message says what is missing."""


class Run:
    """Messages of one load, and the times at which their sender had the acknowledgement and their reader had them.

    Args:
        size_bytes: Size of a payload.

    Attributes:
        marker: Marks its messages.
        acknowledged: Times of the first acknowledgement.
        delivered: Times of the first delivery.
    """

    def __init__(self, size_bytes: int) -> None:
        self.marker = Marker()
        self.acknowledged: Times = {}
        self.delivered: Times = {}
        self._size_bytes = size_bytes
        self._changed = trio.Event()

    @property
    def complete_count(self) -> int:
        """Messages that are acknowledged and delivered, as the one that is behind has them."""
        return min(len(self.acknowledged), len(self.delivered))

    @property
    def complete_at_ns(self) -> int:
        """When the last acknowledgement or delivery so far was received."""
        return max(*self.acknowledged.values(), *self.delivered.values())

    def payload(self, number: int) -> bytes:
        """The payload of a message."""
        return self.marker.payload(number, self._size_bytes)

    def note_acknowledged(self, numbers: Iterable[int]) -> None:
        """These messages are acknowledged now."""
        self._note(self.acknowledged, numbers)

    def note_delivered(self, data: bytes | bytearray | memoryview) -> None:
        """The messages in these bytes are delivered now; those of other runs are ignored."""
        self._note(self.delivered, self.marker.numbers(data))

    async def wait_complete(self, count: int) -> None:
        """Wait until this number of messages is acknowledged and delivered."""
        while self.complete_count < count:
            await self._changed.wait()

    def _note(self, times: Times, numbers: Iterable[int]) -> None:
        now_ns = time.time_ns()
        for number in numbers:
            times.setdefault(number, now_ns)
        self._changed.set()
        self._changed = trio.Event()


class Link(Protocol):
    """A way for messages from a sender to a reader that subscribed to them.

    Attributes:
        in_flight_limit: How many messages it takes that are not acknowledged.
    """

    @property
    def in_flight_limit(self) -> int: ...

    def begin(self, run: Run) -> None:
        """Report acknowledgements and deliveries to this run from now on."""

    def send(self, number: int) -> None:
        """Send a message of the run now, or as soon as fewer than the limit are in flight."""


@attrs.frozen(slots=True)
class Level:
    """A load at a fixed rate: the run, and when its messages were due."""

    schedule: Schedule
    run: Run


async def find_highest_rate(link: Link, size_bytes: int, most: int, tick: Callable[[int], None]) -> float:
    """The highest rate at which messages can be sent, whatever the answers do, without getting later and later.

    It begins with the rate that is reached with as many messages in flight as the link takes. That may be too high:
    many messages at once cost less each. Then it is lowered until the messages of a second are complete in time.

    Args:
        link: The link.
        size_bytes: Size of a payload.
        most: Messages at most that are sent in a trial.
        tick: Called with the number of messages so far.

    Raises:
        LoadError: Messages did not arrive, or no rate was kept up.
    """
    rate = await _closed_loop_rate(link, size_bytes, tick)
    for _ in range(_MOST_TRIALS):
        count = max(1, min(most, int(rate * _TRIAL_S)))
        level = await send_at_rate(link, rate, count, size_bytes, tick)
        took_s = (level.run.complete_at_ns - level.schedule.begin_ns) / 1e9
        if took_s <= count / rate * _LATE:
            return rate
        rate = min(count / took_s, rate * _LOWER)
    raise LoadError(f"at {rate:,.0f} messages/s they still get later and later: this machine does too much else")


async def _closed_loop_rate(link: Link, size_bytes: int, tick: Callable[[int], None]) -> float:
    """Messages a second that are acknowledged and delivered, when as many are in flight as the link takes."""
    run = Run(size_bytes)
    link.begin(run)
    sent = before = 0
    began = ended = time.perf_counter()
    measured_from = began + _WARM_UP_S
    with trio.move_on_after(_WARM_UP_S + _SEARCH_S + _LAST_WITHIN_S):
        while ended < began + _WARM_UP_S + _SEARCH_S:
            while sent < run.complete_count + link.in_flight_limit:
                link.send(sent)
                sent += 1
            await run.wait_complete(run.complete_count + 1)
            ended = time.perf_counter()
            if ended < began + _WARM_UP_S:
                before, measured_from = run.complete_count, ended
            tick(run.complete_count)
        measured = run.complete_count - before
        await run.wait_complete(sent)
    if run.complete_count < sent:
        raise _incomplete(run, sent)
    return measured / (ended - measured_from)


async def send_at_rate(
    link: Link, rate_per_s: float, count: int, size_bytes: int, tick: Callable[[int], None]
) -> Level:
    """Send messages at a fixed rate, and wait until all are acknowledged and delivered.

    Raises:
        LoadError: Some are not within 30 s after the last one was due.
    """
    run = Run(size_bytes)
    link.begin(run)
    with alarm() as bell:
        schedule = Schedule(time.time_ns() + _BEGIN_AFTER_NS, rate_per_s, count)

        def send(number: int) -> None:
            link.send(number)
            if not number % 100:
                tick(number)

        await send_on_schedule(schedule, send, bell)
    with trio.move_on_after(_LAST_WITHIN_S):
        await run.wait_complete(count)
    if run.complete_count < count:
        raise _incomplete(run, count)
    return Level(schedule, run)


def _incomplete(run: Run, sent: int) -> LoadError:
    return LoadError(
        f"of {sent} messages, {len(run.acknowledged)} were acknowledged and {len(run.delivered)} delivered within "
        f"{_LAST_WITHIN_S:.0f} s after the last"
    )
