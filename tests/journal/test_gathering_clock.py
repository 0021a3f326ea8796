"""Records are in shared files a bounded time after their append, whatever the system's clock is set to.

Whether an active segment was old enough was decided by times of day alone. When the clock had been set back, segments
were of a time that was still to come, and nothing was gathered until it came: hours or days.
"""

from __future__ import annotations

import pytest
import trio

from journal.engine import Engine
from shards.model import SegmentKind
from shards.seams.clock import ManualClock
from shards.seams.steady_clock import BACKWARD_HOLD_US, FORWARD_HOLD_US, SECOND_US
from shards.segments.segment import Segment
from tests.journal.engines import stop_without_checkpoint, values_of
from tests.journal.test_gathering import DAY_S, NAMES, fill, is_gathered, opened
from tests.simulation.file_system import SimulatedFileSystem, everything_survived

# It takes a few seconds more than max_age_s. But the clock of trio also moves while a thread works, on a busy machine
# far; the clock of the system was set by much more.
BOUND_S = 3 * 3600
CASES = {"back": -3 * DAY_S, "ahead": DAY_S}


async def expect_gathered(engine: Engine, clock: ManualClock) -> None:
    """Let time pass for the engine and for its clock, until no record is in a log segment any more."""
    for _ in range(BOUND_S):
        if not any(has_records(each) for name in NAMES for each in engine.parts.table.by_name(name).segments):
            break
        clock.advance(seconds=1)
        engine.parts.time.sample()
        await trio.sleep(1)
    else:
        pytest.fail(f"not gathered within {BOUND_S} s")
    assert is_gathered(engine, *NAMES)


def has_records(segment: Segment) -> bool:
    """Whether it is a log segment with records."""
    return segment.kind is SegmentKind.LOG and segment.next_offset > segment.base_offset


async def expect_new_records_gathered(engine: Engine, clock: ManualClock) -> None:
    before = await fill(engine, *NAMES)
    await expect_gathered(engine, clock)
    assert {name: await values_of(engine, name) for name in NAMES} == before


@pytest.mark.parametrize("seconds", CASES.values(), ids=CASES)
@pytest.mark.parametrize("is_followed", [False, True], ids=["not followed yet", "followed"])
async def test_records_are_gathered_in_time_after_the_clock_is_set_while_the_node_runs(
    autojump_clock: object, seconds: int, is_followed: bool
) -> None:
    clock = ManualClock()
    async with opened(SimulatedFileSystem(), clock=clock) as engine:
        await fill(engine, *NAMES)
        clock.jump(seconds=seconds)
        if is_followed:
            for _ in range(3 + max(BACKWARD_HOLD_US, FORWARD_HOLD_US) // SECOND_US):
                clock.advance(seconds=1)
                engine.parts.time.sample()
            assert engine.parts.time.difference_us == 0
        await expect_new_records_gathered(engine, clock)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_records_are_gathered_in_time_after_a_start_with_a_clock_that_was_set_back(
    autojump_clock: object, crash: bool
) -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        await fill(engine, *NAMES)
        if crash:
            stop_without_checkpoint(engine)
    if crash:
        files = files.crash(everything_survived)
    clock.jump(seconds=-3 * DAY_S)
    async with opened(files, clock=clock) as engine:
        await expect_new_records_gathered(engine, clock)
        # A jump ahead that the node does not follow yet changes nothing.
        clock.jump(seconds=400 * DAY_S)
        await expect_new_records_gathered(engine, clock)


async def test_segments_of_an_earlier_life_are_gathered_in_time_without_new_records(autojump_clock: object) -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        await fill(engine, *NAMES)
    clock.jump(seconds=-3 * DAY_S)
    async with opened(files, clock=clock) as engine:
        await expect_gathered(engine, clock)
