"""Growing what is under test from size to size within bounds of size and time, and measuring at each."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Final, Protocol

import attrs

from benchmarks.load import Meter, Timing
from benchmarks.runs import NoRoomError, UnavailableError
from benchmarks.scale.curves import PROCESSOR, RATE, Curve, Point, format_size
from benchmarks.stage import Stage

_MIN_GROWTH: Final = 1.5


@attrs.frozen(slots=True)
class Form:
    """How each figure is measured.

    Attributes:
        timing: Warm-up and time of each run.
        runs: Runs of a rate and of a p99; the median of them counts.
        warm_up_bytes: Appended to a journal server first, so that its files are all written.
        appends: Appends that are made one time, where appends cannot be repeated.
        reads: Reads of a run that has no time.
    """

    timing: Timing
    runs: int
    warm_up_bytes: int
    appends: int
    reads: int

    def median(self, run: Callable[[], float]) -> float:
        """The median of so many runs."""
        return statistics.median(run() for _ in range(self.runs))

    def rates(self, run: Callable[[Timing], float], processor_s: Callable[[], float]) -> Mapping[str, float]:
        """Medians of a rate and of the processor time for one of so many a second.

        Args:
            run: Measures the rate.
            processor_s: Processor time that the servers have used so far.
        """
        rates, times_us = [], []
        for _ in range(self.runs):
            meter = Meter(processor_s)
            rates.append(run(attrs.evolve(self.timing, meter=meter)))
            times_us.append(meter.microseconds_each())
        return {RATE: statistics.median(rates), PROCESSOR: statistics.median(times_us)}


class Growing(Protocol):
    """What is under test. It only grows."""

    def warm_up(self) -> None:
        """Bring it to the state of one that has worked for a while."""

    def grow(self, size: float) -> None:
        """Bring it to this size. Raises `NoRoomError` if this machine has no room for it."""

    def measure(self) -> Mapping[str, float]:
        """The figures at this size, by the keys of `curves.FIGURES`."""

    def close(self) -> None:
        """Stop all processes of it."""


@attrs.frozen(slots=True)
class Dimension:
    """A dimension in which something grows.

    Attributes:
        key: Its name.
        noun: What the sizes count, in the plural.
        title: What is done at each size.
        sizes: Rising.
        open: Starts what is under test, in the empty directory of a stage.
    """

    key: str
    noun: str
    title: str
    sizes: Sequence[float]
    open: Callable[[Stage, Form], Growing]


@attrs.frozen(slots=True)
class Bounds:
    """Bounds of a run.

    Attributes:
        most: Largest size.
        now_s: A clock that never goes backwards.
        deadline_s: Time on that clock after which no point is to end.
    """

    most: float
    now_s: Callable[[], float]
    deadline_s: float

    def excludes(self, size: float, expected_s: float) -> str:
        """Why a point is not measured that takes so many seconds; empty if it is."""
        if size > self.most:
            return f"larger than {format_size(self.most)}"
        left_s = max(0.0, self.deadline_s - self.now_s())
        return f"takes about {expected_s:.0f} s, and {left_s:.0f} s are left" if expected_s > left_s else ""


def measure(
    dimension: Dimension,
    stage: Stage,
    form: Form,
    bounds: Bounds,
    *,
    progress: Callable[[float], None],
    expected_errors: tuple[type[Exception], ...],
) -> Curve:
    """Measure the points of a dimension, the smallest first.

    The first point is always measured. A later one is measured only if it is likely to end before the deadline: growing
    takes as much longer as the size is larger, and measuring as long as before. After a point that is left out there is
    no larger one. If this machine has no room for a size, the largest one for which it has room takes its place.

    Args:
        dimension: What grows.
        stage: Where it runs.
        form: How each figure is measured.
        bounds: Of size and time.
        progress: Called with each size before it is made.
        expected_errors: Errors of a server or a generator that end the curve but not the run.
    """
    points: list[Point] = []
    reason, has_failed = "", False
    grown_s = measured_s = 0.0
    sizes = deque(dimension.sizes)
    with ExitStack() as stack:
        try:
            growing = stack.enter_context(closing(dimension.open(stage, form)))
            growing.warm_up()
        except expected_errors as error:
            return _curve(dimension, [], _failure(error), has_failed=True)
        while sizes:
            size = sizes.popleft()
            begun_s = bounds.now_s()
            expected_s = grown_s * size / points[-1].size + measured_s if points else 0.0
            if too_large := bounds.excludes(size, expected_s):
                reason = too_large
                break
            progress(size)
            try:
                growing.grow(size)
                grown_s = bounds.now_s() - begun_s
                points.append(Point(size, growing.measure()))
            except NoRoomError as error:
                reason = str(error)
                sizes = deque(_in_its_place(error.most, points))
                continue
            except UnavailableError as error:
                reason = str(error)
                break
            except expected_errors as error:
                reason, has_failed = _failure(error), True
                break
            measured_s = bounds.now_s() - begun_s - grown_s
    return _curve(dimension, points, reason, has_failed=has_failed)


def _in_its_place(most: float, points: Sequence[Point]) -> list[float]:
    """The size that takes the place of one that is too large: two digits, and clearly larger than the last one."""
    unit = 10 ** max(0, math.floor(math.log10(max(most, 1))) - 1)
    size = math.floor(most / unit) * unit
    return [size] if points and size >= _MIN_GROWTH * points[-1].size else []


def _failure(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {error}"


def _curve(dimension: Dimension, points: Sequence[Point], reason: str, *, has_failed: bool) -> Curve:
    largest = points[-1].size if points else 0
    left_out = tuple((size, reason) for size in dimension.sizes if size > largest)
    return Curve(dimension.key, dimension.noun, dimension.title, tuple(points), left_out, has_failed)
