"""A rate is taken over the time that was measured, however late the ends of the warm-up and of the run were seen."""

from __future__ import annotations

import pytest

from benchmarks import load
from benchmarks.load import LoadError, RateClock, Timing


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(load.time, "perf_counter", lambda: self.now_s)


def test_the_warm_up_is_not_counted_nor_the_time_that_it_lasted_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rate = RateClock(Timing(warm_up_s=1.0, measured_s=2.0), begun_at=clock.now_s)
    for now_s, total in ((100.5, 10), (102.5, 70), (102.9, 75)):
        clock.now_s = now_s
        assert not rate.ended(total)
    clock.now_s = 104.5
    assert rate.ended(110)
    clock.now_s = 200.0
    assert rate.ended(1000)
    assert rate.rate() == (110 - 70) / 2


def test_a_run_that_ends_where_it_begins_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rate = RateClock(Timing(warm_up_s=1.0, measured_s=2.0), begun_at=clock.now_s)
    clock.now_s = 110.0
    assert rate.ended(10)
    with pytest.raises(LoadError, match="before anything was measured"):
        rate.rate()


def test_a_server_that_answers_nothing_has_no_rate_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a division by zero in the ratio of a row that is compared with it."""
    clock = Clock(monkeypatch)
    rate = RateClock(Timing(warm_up_s=1.0, measured_s=2.0), begun_at=clock.now_s)
    clock.now_s = 101.0
    assert not rate.ended(10)
    clock.now_s = 103.0
    assert rate.ended(10)
    with pytest.raises(LoadError, match="nothing was answered"):
        rate.rate()
