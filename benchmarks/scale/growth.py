"""Growing what is under test from size to size within bounds of size and time, and measuring at each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Protocol

import attrs

from benchmarks.load import Meter, Timing
from benchmarks.runs import UnavailableError
from benchmarks.scale.curves import PROCESSOR, RATE, Curve, Point, format_size
from benchmarks.stage import Stage


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
        """Bring it to this size. Raises `UnavailableError` if this machine has no room for it."""

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
    no larger one.

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
    with ExitStack() as stack:
        try:
            growing = stack.enter_context(closing(dimension.open(stage, form)))
            growing.warm_up()
        except expected_errors as error:
            return _curve(dimension, [], _failure(error), has_failed=True)
        for size in dimension.sizes:
            begun_s = bounds.now_s()
            if points:
                expected_s = grown_s * size / points[-1].size + measured_s
                if begun_s + expected_s > bounds.deadline_s:
                    left_s = max(0.0, bounds.deadline_s - begun_s)
                    reason = f"takes about {expected_s:.0f} s, and {left_s:.0f} s are left"
            if size > bounds.most:
                reason = f"larger than {format_size(bounds.most)}"
            if reason:
                break
            progress(size)
            try:
                growing.grow(size)
                grown_s = bounds.now_s() - begun_s
                points.append(Point(size, growing.measure()))
            except UnavailableError as error:
                reason = str(error)
            except expected_errors as error:
                reason, has_failed = _failure(error), True
            if reason:
                break
            measured_s = bounds.now_s() - begun_s - grown_s
    return _curve(dimension, points, reason, has_failed=has_failed)


def _failure(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {error}"


def _curve(dimension: Dimension, points: Sequence[Point], reason: str, *, has_failed: bool) -> Curve:
    left_out = tuple((size, reason) for size in dimension.sizes[len(points) :])
    return Curve(dimension.key, dimension.noun, dimension.title, tuple(points), left_out, has_failed)
