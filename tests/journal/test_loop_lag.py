"""The pulse notices a loop that stalls, and since when appends are held back."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from journal.telemetry.loop_monitor import LoopLag


async def test_a_loop_that_keeps_up_has_no_stalls(autojump_clock: MockClock) -> None:
    loop_lag = LoopLag(lambda: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop_lag.run)
        await trio.sleep(1.05)
        nursery.cancel_scope.cancel()
    assert sum(loop_lag.late_s.counts()) == 10
    assert (loop_lag.stalls, loop_lag.stalled_s) == (0, 0)


async def test_what_blocks_the_loop_is_counted_as_a_stall(mock_clock: MockClock) -> None:
    loop_lag = LoopLag(lambda: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop_lag.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.35)  # no task runs for so long
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert loop_lag.stalls == 1
    assert loop_lag.stalled_s == pytest.approx(0.25)
    assert loop_lag.late_s.total >= loop_lag.stalled_s


async def test_it_knows_since_when_appends_are_held_back(autojump_clock: MockClock) -> None:
    room = [True]
    loop_lag = LoopLag(lambda: room[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop_lag.run)
        await trio.sleep(1.05)
        assert loop_lag.held_back_s == 0
        room[0] = False
        await trio.sleep(7)
        assert loop_lag.held_back_s == pytest.approx(7, abs=0.1)
        room[0] = True
        await trio.sleep(0.11)
        assert loop_lag.held_back_s == 0
        nursery.cancel_scope.cancel()
