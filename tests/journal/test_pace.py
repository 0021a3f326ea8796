"""A long walk leaves the loop to the others."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from journal.server import inventory
from journal.server.inventory import Pace


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A processor's clock that only the test moves."""
    spent = [0.0]
    monkeypatch.setattr(inventory, "perf_counter", lambda: spent[0])
    return spent


async def test_it_takes_one_hundredth_of_the_time(busy: list[float], autojump_clock: MockClock) -> None:
    pace, began = Pace(), trio.current_time()
    for _ in range(6_400):
        busy[0] += 0.00001
        await pace.step()
    assert busy[0] == pytest.approx(0.064)
    assert trio.current_time() - began == pytest.approx(0.064 * 99, rel=0.02)


async def test_no_step_is_longer_than_a_millisecond(busy: list[float], autojump_clock: MockClock) -> None:
    pace = Pace()
    steps: list[float] = []
    before, seen = 0.0, trio.current_time()
    for _ in range(6_400):
        busy[0] += 0.00001
        await pace.step()
        if trio.current_time() > seen:
            steps.append(busy[0] - before)
            before, seen = busy[0], trio.current_time()
    assert steps
    assert max(steps) < 0.0015


async def test_a_short_walk_does_not_rest(busy: list[float], autojump_clock: MockClock) -> None:
    began, pace = trio.current_time(), Pace()
    for _ in range(50):
        busy[0] += 0.00001
        await pace.step()
    assert trio.current_time() == began
