"""The loop monitor misses no iteration of the event loop that is too long."""

from __future__ import annotations

import pytest
import trio

from journal.telemetry import loop_monitor
from journal.telemetry.loop_monitor import LONG_S, LoopMonitor


async def test_one_long_step_between_two_samples_of_the_pulse_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 60 ms was between two samples, ten times a second, and no metric showed it."""
    now_s = [0.0]
    monkeypatch.setattr(loop_monitor, "perf_counter", lambda: now_s[0])
    monitor = LoopMonitor()
    trio.lowlevel.add_instrument(monitor)
    try:
        await trio.sleep(0)
        assert monitor.longest_s < LONG_S
        now_s[0] += 0.06
        await trio.sleep(0)
    finally:
        trio.lowlevel.remove_instrument(monitor)
    assert monitor.longest_s == pytest.approx(0.06)
    assert monitor.long_count == 1


def test_the_longest_is_that_of_the_last_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(loop_monitor, "perf_counter", lambda: now_s[0])
    monitor = LoopMonitor()

    def iteration(took_s: float) -> None:
        monitor.after_io_wait(0)
        now_s[0] += took_s
        monitor.before_io_wait(0)

    iteration(0.2)
    for _ in range(7):
        iteration(0.01)
        now_s[0] += 10
    iteration(0.01)
    assert monitor.longest_s == pytest.approx(0.2)
    for _ in range(13):
        now_s[0] += 10
        iteration(0.01)
    assert monitor.longest_s == pytest.approx(0.01)
    assert monitor.long_count == 1
