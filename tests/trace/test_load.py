"""Loads over a link: as many messages as it takes, and at a fixed rate; nothing is counted that did not arrive."""

from __future__ import annotations

import math
import time
from collections import deque

import pytest
import trio

from journal.client import AppendLimits
from journal.client.batching import pending_of
from journal.trace import Options, load
from journal.trace.capture import RING_BYTES
from journal.trace.load import LoadError, Run, _closed_loop_rate, find_highest_rate, send_at_rate

WINDOW_BYTES = AppendLimits().window_bytes


class Echo:
    """A link that acknowledges and delivers in a task of its own; it may lose what is to be delivered."""

    in_flight_limit = 8

    def __init__(self, lost: frozenset[int] = frozenset(), pause_s: float = 0) -> None:
        self.runs: list[Run] = []
        self.most_in_flight = 0
        self.handed_over: list[int] = []
        self._lost = lost
        self._pause_s = pause_s
        self._sent: deque[int] = deque()
        self._was_sent = trio.Event()

    def begin(self, run: Run) -> None:
        self.runs.append(run)
        self.handed_over = []

    def send(self, number: int) -> None:
        self.handed_over.append(number)
        self._sent.append(number)
        self.most_in_flight = max(self.most_in_flight, len(self._sent))
        self._was_sent.set()

    async def answer(self) -> None:
        while True:
            await self._was_sent.wait()
            self._was_sent = trio.Event()
            run = self.runs[-1]
            while self._sent:
                number = self._sent.popleft()
                if self._pause_s:
                    await trio.sleep(self._pause_s)
                run.note_acknowledged([number])
                if number not in self._lost:
                    run.note_delivered(b"around " + run.payload(number))
            await trio.lowlevel.checkpoint()


def untold(_count: int) -> None:
    """No progress is shown."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_WARM_UP_S", 0.02), ("_SEARCH_S", 0.05), ("_TRIAL_S", 0.1)):
        monkeypatch.setattr(load, name, seconds)


async def test_the_search_keeps_as_many_in_flight_as_the_link_takes(short: None, nursery: trio.Nursery) -> None:
    link = Echo()
    nursery.start_soon(link.answer)
    assert await _closed_loop_rate(link, 100, untold) > 0
    assert link.most_in_flight == link.in_flight_limit
    # All of them have arrived, so that none disturbs what is measured next.
    assert link.runs[-1].complete_count == len(link.handed_over)


async def test_a_rate_that_is_not_kept_up_is_lowered_until_it_is(
    short: None, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_high(*_arguments: object) -> float:
        return 4000.0

    monkeypatch.setattr(load, "_closed_loop_rate", too_high)
    # A pause of this process must not decide.
    monkeypatch.setattr(load, "_LATE", 2.0)
    link = Echo(pause_s=0.001)
    nursery.start_soon(link.answer)
    rate = await find_highest_rate(link, 100, 10_000, untold)
    # A message takes a millisecond or more, and a trial twice its schedule at most.
    assert rate <= 2020
    assert len(link.runs) > 1


async def test_a_trial_has_no_more_messages_than_a_client_has_room_for(
    short: None, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_LATE", 1e6)
    link = Echo()
    nursery.start_soon(link.answer)
    await find_highest_rate(link, 100, 5, untold)
    assert link.handed_over == list(range(5))


async def test_a_rate_that_is_never_kept_up_is_an_error(
    short: None, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_LATE", 0.0)
    link = Echo()
    nursery.start_soon(link.answer)
    with pytest.raises(LoadError, match="later and later"):
        await find_highest_rate(link, 100, 10_000, untold)


async def test_at_a_rate_every_message_has_a_time_of_both_ends(nursery: trio.Nursery) -> None:
    link = Echo()
    nursery.start_soon(link.answer)
    before_ns = time.time_ns()
    level = await send_at_rate(link, 5000, 100, 100, untold)
    assert link.handed_over == list(range(100))
    for times in (level.run.acknowledged, level.run.delivered):
        assert sorted(times) == list(range(100))
        assert all(level.schedule.time_ns(number) <= at_ns <= time.time_ns() for number, at_ns in times.items())
    assert level.schedule.begin_ns > before_ns


async def test_messages_that_do_not_arrive_are_an_error_with_their_number(
    short: None, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_LAST_WITHIN_S", 0.2)
    link = Echo(lost=frozenset({3, 7}))
    nursery.start_soon(link.answer)
    with pytest.raises(LoadError, match="of 10 messages, 10 were acknowledged and 8 delivered"):
        await send_at_rate(link, 5000, 10, 100, untold)
    link = Echo(lost=frozenset({3}))
    nursery.start_soon(link.answer)
    with pytest.raises(LoadError, match="were acknowledged"):
        await find_highest_rate(link, 100, 10_000, untold)


async def test_what_a_run_before_had_in_flight_is_not_counted() -> None:
    earlier, run = Run(100), Run(100)
    run.note_delivered(earlier.payload(0))
    assert run.delivered == {}


async def test_the_first_delivery_of_a_message_counts() -> None:
    run = Run(100)
    run.note_delivered(run.payload(0))
    first_ns = run.delivered[0]
    run.note_delivered(run.payload(0))
    assert run.delivered == {0: first_ns}


@pytest.mark.parametrize("size_bytes", [25, 100, 16 * 1024])
def test_the_messages_of_a_level_fit_into_the_ring_and_into_the_window_of_a_client(size_bytes: int) -> None:
    options = Options.checked(size_bytes, 5_000_000, 0, False)
    # Two hops of MQTT and two of the journal have the payload, each in a packet with headers and the kernel's own.
    assert options.most_messages * (4 * (size_bytes + 200) + 200) <= RING_BYTES
    assert sum(pending_of([bytes(size_bytes)]).size_bytes for _ in range(options.most_messages)) <= WINDOW_BYTES
    assert options.most_messages > 1000


@pytest.mark.parametrize("rate_per_s", [-1.0, 1e12, math.inf, math.nan])
def test_a_rate_that_no_machine_reaches_is_refused(rate_per_s: float) -> None:
    with pytest.raises(LoadError, match="or at most 10,000,000"):
        Options.checked(100, 5_000_000, rate_per_s, False)
