"""A record that makes its sink fail each time: it once blocked its queue for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.bridge.breaker import BreakerSettings
from broker_adapter.bridge.poison_detector import PoisonDetector
from broker_adapter.cache_queue import look
from broker_adapter.cache_queue.dead_letters import list_dead_letters
from broker_adapter.sinks import SinkUnavailableError
from tests.bridge.fakes import Shelf
from tests.bridge.test_driver import QUEUE, driven, numbers, put, spec_for, until_empty


@pytest.fixture
async def store() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as adapter:
        yield adapter


def failing(*poison: bytes, **others: object) -> Shelf:
    """A web service that answers 500 to requests that have one of these in them."""
    shelf = Shelf(**others)  # type: ignore[arg-type]
    shelf.breaks_over = lambda value: value in poison
    return shelf


SOON = BreakerSettings(min_backoff_s=0.01, max_backoff_s=0.1)


@pytest.mark.parametrize("max_in_flight", [1, 4])
@pytest.mark.parametrize("keeps_position", [False, True])
@pytest.mark.parametrize("poison", [(b"0",), (b"57",), (b"13", b"14", b"57"), (b"99",)])
async def test_it_becomes_a_dead_letter_and_all_else_arrives_in_order(
    store: StorageAdapter,
    autojump_clock: MockClock,
    poison: tuple[bytes, ...],
    keeps_position: bool,
    max_in_flight: int,
) -> None:
    """It answered 500 to one record, which came back for ever, with all that waited behind it."""
    shelf = failing(*poison, keeps_position=keeps_position, max_in_flight=max_in_flight)
    await put(store, 0, 100)
    async with driven(store, spec_for(shelf, max_outages=3, batch_records=64, breaker=SOON)):
        state = await until_empty(store)
    assert shelf.values == [value for value in numbers(0, 100) if value not in poison]
    letters = [letter async for letter in list_dead_letters(store, QUEUE)]
    assert [letter.record.value for letter in letters] == list(poison)
    assert all("failed each time that this record alone was sent: it broke" in letter.reason for letter in letters)
    assert (state.progress.counts.confirmed, state.progress.counts.dead_lettered) == (100 - len(poison), len(poison))


@pytest.mark.slow("many outages one after the other")
async def test_without_the_setting_nothing_is_set_aside_for_an_outage(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = failing(b"5")
    await put(store, 0, 10)
    async with driven(store, spec_for(shelf, breaker=SOON)):
        await trio.sleep(50)
        assert shelf.check_count > 200
        assert (await look(store, QUEUE)).dead_letter_count == 0
        shelf.breaks_over = lambda _: False
        await until_empty(store)
    assert shelf.values == numbers(0, 10)


async def test_an_outage_for_all_records_sets_few_aside(store: StorageAdapter, autojump_clock: MockClock) -> None:
    """A service whose database is gone answers 500 to everything, and is well when it is asked for its health."""
    shelf = failing(*numbers(0, 100))
    await put(store, 0, 100)
    async with driven(store, spec_for(shelf, max_outages=5, breaker=BreakerSettings())):
        await trio.sleep(1200)
        # About 50 outages: the first record after 5 of its own, the next ones after 10, 20 and 40.
        assert (await look(store, QUEUE)).dead_letter_count <= 3
        shelf.breaks_over = lambda _: False
        state = await until_empty(store)
    assert len(shelf.values) + state.dead_letter_count == 100


@pytest.mark.slow("many outages one after the other")
async def test_a_sink_that_says_when_it_is_back_makes_no_record_suspect(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf(raises=lambda: SinkUnavailableError("busy", retry_after_s=1.0))
    await put(store, 0, 1)
    async with driven(store, spec_for(shelf, max_outages=1, breaker=SOON)):
        await trio.sleep(600)
        assert (await look(store, QUEUE)).dead_letter_count == 0


@given(st.integers(1, 500), st.data())
def test_one_record_is_found_within_a_few_outages(count: int, data: st.DataObject) -> None:
    poison = data.draw(st.integers(0, count - 1))
    poison_detector, offset, outage_count = PoisonDetector(3), 0, 0
    while offset < count:
        size = poison_detector.at_most(count - offset)
        if offset <= poison < offset + size:
            outage_count += 1
            if poison_detector.failed(offset, size):
                assert (offset, size) == (poison, 1)
                offset += 1
        else:
            poison_detector.succeeded(offset + size)
            offset += size
    assert outage_count <= 3 + count.bit_length()
