"""Pauses of the process do not pass on the clock for tests; all other time does."""

from __future__ import annotations

import time

import trio

from tests.steady_clock import SteadyClock


async def test_a_pause_of_the_process_passes_no_time_limit(steady_clock: SteadyClock) -> None:
    with trio.fail_after(0.5):
        time.sleep(0.6)
        await trio.lowlevel.checkpoint()


async def test_what_waits_goes_on_in_time(steady_clock: SteadyClock) -> None:
    began_s, really_began_s = trio.current_time(), time.perf_counter()
    await trio.sleep(0.2)
    assert trio.current_time() - began_s >= 0.2
    assert time.perf_counter() - really_began_s >= 0.2
