"""The pulse notices a loop that stalls, and since when appends are held back."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import MockClock

from journal.telemetry.loop_lag import LoopLag
from tests.patience import PATIENCE_S


async def test_a_loop_that_keeps_up_has_no_stalls(autojump_clock: MockClock) -> None:
    pulse = LoopLag(lambda: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulse.run)
        await trio.sleep(1.05)
        nursery.cancel_scope.cancel()
    assert sum(pulse.late_s.counts()) == 10
    assert (pulse.stalls, pulse.stalled_s) == (0, 0)


async def test_what_blocks_the_loop_is_counted_as_a_stall() -> None:
    pulse = LoopLag(lambda: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulse.run)
        await trio.testing.wait_all_tasks_blocked()
        time.sleep(0.35)
        with trio.fail_after(PATIENCE_S):
            while not pulse.stalls:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert pulse.stalls == 1
    assert 0.2 < pulse.stalled_s < 5
    assert pulse.late_s.total >= pulse.stalled_s


async def test_it_knows_since_when_appends_are_held_back(autojump_clock: MockClock) -> None:
    room = [True]
    pulse = LoopLag(lambda: room[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulse.run)
        await trio.sleep(1.05)
        assert pulse.held_back_s == 0
        room[0] = False
        await trio.sleep(7)
        assert pulse.held_back_s == pytest.approx(7, abs=0.1)
        room[0] = True
        await trio.sleep(0.11)
        assert pulse.held_back_s == 0
        nursery.cancel_scope.cancel()
