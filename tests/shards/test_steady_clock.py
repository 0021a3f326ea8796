"""The steady clock: what wrong samples of the system's clock may and may not do."""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from shards.seams.clock import ManualClock
from shards.seams.steady_clock import (
    BACKWARD_HOLD_US,
    FORWARD_HOLD_US,
    JUMP_US,
    SECOND_US,
    SLEW_DIVISOR,
    Jump,
    SteadyClock,
)

HOUR_S: Final = 3600


def sampled(clock: ManualClock, steady: SteadyClock, seconds: int) -> list[Jump]:
    """Let time pass with a sample each second; gives what the samples returned."""
    told = []
    for _ in range(seconds):
        clock.advance(seconds=1)
        jump = steady.sample()
        if jump is not None:
            told.append(jump)
    return told


def test_one_wrong_sample_in_the_far_future_changes_nothing() -> None:
    """One bad sample used to stick until the restart: what was stored after it with a time to live was expired."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    sampled(clock, steady, 10)
    clock.jump(seconds=HOUR_S)
    assert steady.sample() == Jump("noticed", HOUR_S * SECOND_US)
    clock.jump(seconds=-HOUR_S)
    assert [jump.outcome for jump in sampled(clock, steady, 5)] == ["taken back"]
    assert steady.now_us() == steady.expiry_us() == clock.now_us()


def test_a_jump_forwards_is_followed_only_after_ten_minutes() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    before_us = clock.now_us()
    clock.jump(seconds=HOUR_S)
    told = sampled(clock, steady, FORWARD_HOLD_US // SECOND_US)
    assert [jump.outcome for jump in told] == ["noticed"]
    assert steady.now_us() == steady.expiry_us() == before_us + FORWARD_HOLD_US
    assert steady.difference_us == HOUR_S * SECOND_US
    assert sampled(clock, steady, 1) == [Jump("followed", HOUR_S * SECOND_US)]
    assert steady.now_us() == steady.expiry_us() == clock.now_us()
    assert (steady.difference_us, steady.followed_jumps) == (0, 1)


def test_a_jump_back_is_followed_after_ten_seconds_and_counts_for_expiry_at_once() -> None:
    """What is stored right after a jump back, to live for less than the jump, would have expired at once."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.jump(seconds=-HOUR_S)
    assert steady.expiry_us() == clock.now_us()
    told = sampled(clock, steady, BACKWARD_HOLD_US // SECOND_US)
    assert [jump.outcome for jump in told] == ["noticed"]
    assert steady.now_us() == clock.now_us() + HOUR_S * SECOND_US
    assert sampled(clock, steady, 1) == [Jump("followed", -HOUR_S * SECOND_US)]
    assert steady.now_us() == clock.now_us()


def test_samples_that_disagree_with_each_other_are_never_followed() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    before_us = clock.now_us()
    for number in range(2000):
        clock.jump(seconds=10 * (number % 7 + 1))
        clock.advance(seconds=1)
        steady.sample()
        clock.jump(seconds=-10 * (number % 7 + 1))
    assert steady.now_us() == before_us + 2000 * SECOND_US
    assert steady.followed_jumps == 0


def test_two_samples_far_apart_prove_no_jump() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.jump(seconds=HOUR_S)
    steady.sample()
    clock.advance(seconds=HOUR_S)
    assert steady.sample() is None
    assert steady.now_us() == clock.now_us() - HOUR_S * SECOND_US


def test_a_small_difference_is_corrected_gradually_both_ways() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    for sign in (1, -1):
        clock.jump(microseconds=sign * 900_000)
        last_us = steady.now_us()
        for _ in range(200):
            clock.advance(seconds=1)
            assert steady.sample() is None
            now_us = steady.now_us()
            assert 995_000 <= now_us - last_us <= 1_005_000
            last_us = now_us
        assert steady.now_us() == clock.now_us()


def test_time_stops_for_a_moment_where_drift_would_move_it_back() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.jump(microseconds=-900_000)
    clock.advance(seconds=10)
    before_us = steady.now_us()
    steady.sample()
    assert steady.now_us() == before_us
    clock.advance(microseconds=50_000)
    assert steady.now_us() == before_us


steps = st.lists(
    st.tuples(
        st.integers(0, 30 * SECOND_US),  # time that passes
        st.one_of(st.just(0), st.integers(-2 * JUMP_US, 2 * JUMP_US), st.integers(-(10**12), 10**12)),  # error then
        st.booleans(),  # whether it is sampled
    ),
    max_size=60,
)


@given(steps)
def test_no_wrong_samples_make_anything_expire_before_its_time(errors: list[tuple[int, int, bool]]) -> None:
    """Two could hold one lease in turn: a wrong sample made the first one's expire while it still counted on it.

    Whatever the samples are, less than ten minutes of them never make the time by which things expire run ahead of
    elapsed time by more than the correction of drift.
    """
    clock = ManualClock()
    steady = SteadyClock(clock)
    start_us, passed_us, error_us = clock.now_us(), 0, 0
    for elapsed_us, wanted_us, is_sampled in errors:
        if passed_us + elapsed_us >= FORWARD_HOLD_US:
            break
        clock.advance(microseconds=elapsed_us)
        passed_us += elapsed_us
        clock.jump(microseconds=wanted_us - error_us)
        error_us = wanted_us
        if is_sampled:
            steady.sample()
        assert steady.expiry_us() <= start_us + passed_us + passed_us // SLEW_DIVISOR


@given(steps)
def test_time_goes_back_only_by_a_jump_that_is_logged(errors: list[tuple[int, int, bool]]) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    last_us = error_us = 0
    for elapsed_us, wanted_us, is_sampled in errors:
        clock.advance(microseconds=elapsed_us)
        clock.jump(microseconds=wanted_us - error_us)
        error_us = wanted_us
        jump = steady.sample() if is_sampled else None
        now_us = steady.now_us()
        assert now_us >= last_us or (jump is not None and jump.outcome == "followed" and jump.difference_us < 0)
        last_us = now_us


jumps = st.lists(st.integers(0, 24 * HOUR_S), min_size=1, max_size=3)


@given(jumps, st.integers(1, 590), st.integers(0, 700))
def test_a_lease_lasts_as_long_as_it_should_when_the_clock_of_holder_and_server_jumps(
    seconds: list[int], life_s: int, taken_s: int
) -> None:
    """It ends at a time of day, which holder and server read from the same clock. That jumps and stays there."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    sampled(clock, steady, taken_s)
    expires_us = clock.now_us() + life_s * SECOND_US
    for number in range(life_s):
        assert steady.expiry_us() < expires_us, f"after {number} of {life_s} s"
        if seconds and number % 150 == 0:
            # Each jump restarts the hold.
            clock.jump(seconds=seconds.pop())
        sampled(clock, steady, 1)


@given(st.integers(-24 * HOUR_S, 24 * HOUR_S), st.integers(0, 700), st.integers(1, 600))
def test_what_is_stored_after_a_jump_is_there_at_once(jump_s: int, later_s: int, life_s: int) -> None:
    """State with a time to live was acknowledged and could not be read."""
    clock = ManualClock()
    steady = SteadyClock(clock)
    sampled(clock, steady, 5)
    clock.jump(seconds=jump_s)
    sampled(clock, steady, later_s)
    assert steady.expiry_us() < clock.now_us() + life_s * SECOND_US
