"""A curve ends where size, time or the machine end it, and says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from benchmarks.load import LoadError, Meter, Timing
from benchmarks.runs import NoRoomError, UnavailableError
from benchmarks.scale import growth
from benchmarks.scale.curves import FIGURES, Curve
from benchmarks.scale.growth import Bounds, Dimension, Form
from benchmarks.stage import Stage

FORM = Form(Timing(0.0, 0.0), runs=1, warm_up_bytes=0, appends=1, reads=1)
SIZES = (1, 10, 100, 1000)


@attrs.define
class Thing:
    """Grows by one in a second of its own clock, and is measured in two; it fails at a size."""

    fails_at: float = math.inf
    most: float = math.inf
    error: Exception = attrs.field(factory=lambda: LoadError("refused"))
    now_s: float = 0.0
    size: float = 0.0
    closed: bool = False

    def warm_up(self) -> None:
        self.now_s += 50
        if self.fails_at == 0:
            raise self.error

    def grow(self, size: float) -> None:
        if size >= self.fails_at:
            raise self.error
        if size > self.most:
            raise NoRoomError("the disk is full", self.most)
        self.now_s += size - self.size
        self.size = size

    def measure(self) -> Mapping[str, float]:
        self.now_s += 2
        return dict.fromkeys(FIGURES, self.size)

    def close(self) -> None:
        self.closed = True


def curve_of(thing: Thing, directory: Path, *, most: float = math.inf, seconds: float = math.inf) -> Curve:
    dimension = Dimension("things", "things", "", SIZES, lambda _stage, _form: thing)
    with Stage(directory) as stage:
        curve = growth.measure(
            dimension,
            stage,
            FORM,
            Bounds(most, lambda: thing.now_s, seconds),
            progress=lambda _: None,
            expected_errors=(LoadError,),
        )
    assert thing.closed
    return curve


def sizes(curve: Curve) -> list[float]:
    assert [point.size for point in curve.points] + [size for size, _ in curve.left_out] == list(SIZES)
    return [point.size for point in curve.points]


def test_all_sizes_are_measured_from_the_smallest_on(tmp_path: Path) -> None:
    curve = curve_of(Thing(), tmp_path / "stage")
    assert sizes(curve) == list(SIZES)
    assert [point.figures["start_s"] for point in curve.points] == list(SIZES)
    assert not curve.has_failed


def test_larger_sizes_than_wanted_are_left_out(tmp_path: Path) -> None:
    curve = curve_of(Thing(), tmp_path / "stage", most=100)
    assert sizes(curve) == [1, 10, 100]
    assert curve.left_out == ((1000, "larger than 100"),)


def test_a_size_for_which_the_time_is_too_short_is_not_begun(tmp_path: Path) -> None:
    """From 10 to 100 took 90 s and 2 s to measure; the 50 s before the first size are not counted again."""
    thing = Thing()
    curve = curve_of(thing, tmp_path / "stage", seconds=1050)
    assert sizes(curve) == [1, 10, 100]
    assert curve.left_out == ((1000, "takes about 902 s, and 894 s are left"),)
    assert thing.now_s == 156


def test_the_smallest_size_is_measured_also_without_time(tmp_path: Path) -> None:
    assert sizes(curve_of(Thing(), tmp_path / "stage", seconds=0)) == [1]


def test_a_size_without_room_on_the_machine_is_no_failure(tmp_path: Path) -> None:
    curve = curve_of(Thing(fails_at=100, error=UnavailableError("the disk is full")), tmp_path / "stage")
    assert sizes(curve) == [1, 10]
    assert curve.left_out == ((100, "the disk is full"), (1000, "the disk is full"))
    assert not curve.has_failed


def test_the_largest_size_with_room_takes_the_place_of_one_without(tmp_path: Path) -> None:
    curve = curve_of(Thing(most=187.5), tmp_path / "stage")
    assert [point.size for point in curve.points] == [1, 10, 100, 180]
    assert curve.left_out == ((1000, "the disk is full"),)
    assert not curve.has_failed


@pytest.mark.parametrize("most", [100, 149])
def test_a_size_that_is_hardly_larger_than_the_last_one_takes_no_place(tmp_path: Path, most: float) -> None:
    curve = curve_of(Thing(most=most), tmp_path / "stage")
    assert sizes(curve) == [1, 10, 100]
    assert curve.left_out == ((1000, "the disk is full"),)


def test_a_server_that_refuses_is_a_failure_and_leaves_the_points_before(tmp_path: Path) -> None:
    curve = curve_of(Thing(fails_at=100), tmp_path / "stage")
    assert sizes(curve) == [1, 10]
    assert curve.left_out[0] == (100, "failed: LoadError: refused")
    assert curve.has_failed


def test_a_server_that_fails_before_the_first_size_is_a_failure(tmp_path: Path) -> None:
    curve = curve_of(Thing(fails_at=0), tmp_path / "stage")
    assert sizes(curve) == []
    assert curve.left_out[0] == (1, "failed: LoadError: refused")
    assert curve.has_failed


def test_an_error_of_the_program_ends_the_run(tmp_path: Path) -> None:
    thing = Thing(fails_at=10, error=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        curve_of(thing, tmp_path / "stage")
    assert thing.closed


def test_processor_time_is_of_what_was_answered_between_two_looks() -> None:
    looks = iter((1.0, 1.5))
    meter = Meter(lambda: next(looks))
    meter.note(1000)
    with pytest.raises(LoadError, match="nothing was answered"):
        meter.microseconds_each()
    meter.note(101_000)
    assert meter.microseconds_each() == pytest.approx(5.0)


def test_a_rate_has_the_processor_time_of_the_same_runs() -> None:
    totals = iter(((0, 10), (0, 30), (0, 20)))
    used = iter((0.0, 1.0, 1.0, 3.0, 3.0, 7.0))

    def run(timing: Timing) -> float:
        assert timing.meter is not None
        for total in next(totals):
            timing.meter.note(total)
        return 5.0

    found = attrs.evolve(FORM, runs=3).rates(run, lambda: next(used))
    assert found == {"rate": 5.0, "processor_us": pytest.approx(1e5)}
