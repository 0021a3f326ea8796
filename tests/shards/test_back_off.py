"""How long to wait before the same thing is tried again."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from shards.back_off import BackOff


def test_delays_double_from_the_first_to_the_longest() -> None:
    back_off = BackOff(0.5, 3.0, jitter=0.0)
    assert [back_off.delay_s(attempt) for attempt in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(attempt=st.integers(0, 12), seed=st.integers(), jitter=st.floats(0.0, 1.0))
def test_jitter_takes_off_its_share_at_most(attempt: int, seed: int, jitter: float) -> None:
    back_off = BackOff(0.05, 2.0, jitter)
    longest_s = back_off.longest_delay_s(attempt)
    assert longest_s * (1.0 - jitter) <= back_off.delay_s(attempt, random.Random(seed)) <= longest_s


def test_many_that_failed_together_do_not_try_again_together() -> None:
    back_off = BackOff(1.0, 60.0)
    source = random.Random(1)
    assert len({back_off.delay_s(3, source) for _ in range(50)}) == 50


def test_one_that_has_failed_for_years_still_gets_the_longest_delay() -> None:
    assert BackOff(1.0, 30.0, jitter=0.0).delay_s(10**9) == 30.0
