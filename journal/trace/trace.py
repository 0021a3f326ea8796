"""The trace: what becomes of messages at parts of the highest rate, hop by hop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import attrs

from journal.trace.capture import RING_BYTES, SMALLEST_RING_BYTES, capturing
from journal.trace.hops import Hop, Path, PathTimes, measure
from journal.trace.journal_frames import Times
from journal.trace.load import Level, Link, LoadError, Run, find_highest_rate, send_at_rate
from journal.trace.marker import MIN_BYTES
from journal.trace.streams import Segment

LOADS_PERCENT: Final = (10, 50, 80)
# Of a message in the ring, over brokers: four packets with its payload, their headers, and acknowledgements.
_COPIES: Final = 4
_HEADERS_BYTES: Final = 1000
MAX_BYTES: Final = 16 * 1024
"""Size of a payload at most."""
MAX_DURATION_US: Final = 600_000_000
MAX_RATE_PER_S: Final = 10_000_000

SCHEDULED: Final = "due"
ACKNOWLEDGED: Final = "acknowledged"
DELIVERED: Final = "delivered"
_ENDS: Final = (
    Path("acknowledgement", (Hop("all", "all", SCHEDULED, ACKNOWLEDGED),)),
    Path("delivery", (Hop("all", "all", SCHEDULED, DELIVERED),)),
)

Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Shows the progress of a phase with this name and number of messages."""


class Route(Link, Protocol):
    """A link whose hops can be found in captured packets.

    Attributes:
        ports: Ports of its servers.
        paths: Its paths; their first points are `SCHEDULED`, and the last ones `ACKNOWLEDGED` and `DELIVERED`.
    """

    @property
    def ports(self) -> Collection[int]: ...

    @property
    def paths(self) -> Sequence[Path]: ...

    def times(self, segments: list[Segment], run: Run) -> Mapping[str, Times]:
        """Times of a run's messages at the points between."""


@attrs.frozen(slots=True)
class Options:
    """What is sent.

    Attributes:
        size_bytes: Size of a payload.
        duration_s: How long messages are sent at a level; less if they would be more than ``most_messages``.
        highest_rate_per_s: Rate of which the levels are parts; 0 to find it.
        ends_only: Capture no packets.
    """

    size_bytes: int
    duration_s: float
    highest_rate_per_s: float
    ends_only: bool

    @property
    def most_messages(self) -> int:
        """Messages of a level at most: the ring has room for their packets, and a client for all of them at once."""
        return RING_BYTES // (_COPIES * self.size_bytes + _HEADERS_BYTES)

    @classmethod
    def checked(cls, size_bytes: int, duration_us: int, highest_rate_per_s: float, ends_only: bool) -> Options:
        """Options from numbers that a person wrote.

        Raises:
            LoadError: They are outside of the bounds.
        """
        if not MIN_BYTES <= size_bytes <= MAX_BYTES:
            raise LoadError(f"payloads of {size_bytes} bytes; a trace has payloads from {MIN_BYTES} to {MAX_BYTES}")
        if not 0 < duration_us <= MAX_DURATION_US:
            raise LoadError(f"{duration_us / 1e6:g} s at each rate; it must be more than 0 and at most 600")
        if not 0 <= highest_rate_per_s <= MAX_RATE_PER_S:
            raise LoadError(
                f"a highest rate of {highest_rate_per_s:g} messages/s; it must be 0, to find it, or at most "
                f"{MAX_RATE_PER_S:,}"
            )
        return cls(size_bytes, duration_us / 1e6, highest_rate_per_s, ends_only)


@attrs.frozen(slots=True)
class LevelTimes:
    """Durations at a part of the highest rate.

    Attributes:
        lost_packets: Packets that the capture had no room for; their messages are not found at all points.
    """

    load_percent: int
    rate_per_s: float
    messages: int
    lost_packets: int
    paths: tuple[PathTimes, ...]


@attrs.frozen(slots=True)
class Trace:
    """The durations at all levels."""

    highest_rate_per_s: float
    levels: tuple[LevelTimes, ...]


def check_capture() -> None:
    """Find out, before anything is sent, whether packets can be captured.

    Raises:
        CaptureError: They cannot.
    """
    with capturing((1,), ring_bytes=SMALLEST_RING_BYTES):
        pass


async def trace(route: Route, options: Options, progress: Progress) -> Trace:
    """Find the highest rate, then measure at parts of it.

    Raises:
        CaptureError: Packets cannot be captured.
        LoadError: Messages were not delivered, or none was found in packets.
    """
    highest = options.highest_rate_per_s
    if not highest:
        with progress("messages to find the highest rate", None) as tick:
            highest = await find_highest_rate(route, options.size_bytes, options.most_messages, tick)
    levels = []
    for percent in LOADS_PERCENT:
        rate = highest * percent / 100
        count = max(1, min(options.most_messages, int(rate * options.duration_s)))
        with progress(f"messages at {percent} %", count) as tick:
            if options.ends_only:
                level = await send_at_rate(route, rate, count, options.size_bytes, tick)
                segments, lost = [], 0
            else:
                with capturing(route.ports) as capture:
                    level = await send_at_rate(route, rate, count, options.size_bytes, tick)
                    captured = capture.stop()
                segments, lost = captured.segments, captured.lost
        paths = _ENDS if options.ends_only else route.paths
        times = _times(route, segments, level)
        found = tuple(measured for path in paths if (measured := measure(path, times)))
        if len(found) < len(paths):
            raise LoadError(
                "the messages were delivered, but not found in packets of this machine's loopback interface: run it on "
                "the machine of the servers, over connections without TLS"
            )
        levels.append(LevelTimes(percent, rate, count, lost, found))
    return Trace(highest, tuple(levels))


def _times(route: Route, segments: list[Segment], level: Level) -> dict[str, Times]:
    scheduled = {number: level.schedule.time_ns(number) for number in range(level.schedule.count)}
    ends = {SCHEDULED: scheduled, ACKNOWLEDGED: level.run.acknowledged, DELIVERED: level.run.delivered}
    return {**route.times(segments, level.run), **ends}
