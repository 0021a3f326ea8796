"""Messages are sent when they are due, and counted from then, however late they are sent."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.trace.schedule import Schedule, alarm, send_on_schedule

LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="the alarm is one of Linux")


@given(
    begin_ns=st.integers(0, 2 * 10**18),
    rate_per_s=st.floats(0.1, 1e6),
    count=st.integers(1, 5000),
    part=st.floats(-0.1, 1.1),
)
def test_what_is_due_and_when_it_is_due_agree(begin_ns: int, rate_per_s: float, count: int, part: float) -> None:
    schedule = Schedule(begin_ns, rate_per_s, count)
    now_ns = begin_ns + int(part * count / rate_per_s * 1e9)
    due = schedule.due(now_ns)
    assert 0 <= due <= count
    assert all(schedule.time_ns(number) <= now_ns for number in (due - 1,) if number >= 0)
    assert all(schedule.time_ns(number) > now_ns for number in (due,) if number < count)


@given(st.floats(0.1, 1e6), st.integers(2, 5000))
def test_the_last_message_is_due_at_the_rate(rate_per_s: float, count: int) -> None:
    schedule = Schedule(10**18, rate_per_s, count)
    assert (schedule.time_ns(count - 1) - 10**18) / 1e9 == pytest.approx((count - 1) / rate_per_s, abs=1e-8)


@LINUX_ONLY
async def test_no_message_is_sent_before_it_is_due_and_all_are_sent_in_order() -> None:
    sent: list[tuple[int, int]] = []
    schedule = Schedule(time.time_ns() + 1_000_000, 10_000, 200)
    with alarm() as bell:
        await send_on_schedule(schedule, lambda number: sent.append((number, time.time_ns())), bell)
    assert [number for number, _ in sent] == list(range(200))
    assert all(sent_ns >= schedule.time_ns(number) for number, sent_ns in sent)


@LINUX_ONLY
async def test_messages_that_a_stall_has_made_late_are_sent_at_once_and_none_is_dropped() -> None:
    sent: list[int] = []
    # All of them have been due for a second.
    schedule = Schedule(time.time_ns() - 2 * 10**9, 1000, 1000)
    with alarm() as bell:
        await send_on_schedule(schedule, sent.append, bell)
    assert sent == list(range(1000))
