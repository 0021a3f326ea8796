"""A bridge that fails for a reason that no rule names stops alone, says why, and tries again while the broker lives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio
from trio.testing import MockClock

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.projection import Projection
from broker_adapter.cache_queue import look, names
from journal.settings.values import ConfigurationError
from shards.format.record import Record
from tests.bridge.fakes import Shelf
from tests.bridge.test_driver import QUEUE, numbers, put, spec_for, until_empty

ERRORS: list[Callable[[], Exception]] = [
    lambda: UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "unexpected end of data"),
    lambda: RecursionError("maximum recursion depth exceeded"),
    lambda: OverflowError("date value out of range"),
    lambda: ExceptionGroup("Exceptions from Trio nursery", [KeyError("reply")]),
]


@pytest.fixture
async def store() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as adapter:
        yield adapter


@pytest.mark.few_cases(2, "a bridge and a broker for each error")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error()).__name__)
@pytest.mark.parametrize("max_in_flight", [1, 4])
async def test_an_error_that_a_sink_may_not_raise_ends_neither_the_bridge_nor_the_broker(
    store: StorageAdapter, autojump_clock: MockClock, error: Callable[[], Exception], max_in_flight: int
) -> None:
    """An unexpected reply ended the whole broker, and again after each restart."""
    broken, well = Shelf(raises=error, max_in_flight=max_in_flight), Shelf()
    specs = [spec_for(broken), spec_for(well, name="well")]
    await put(store, 0, 30)
    async with trio.open_nursery() as nursery:
        await nursery.start(Bridges(store, specs, "here").run)
        await store.append(names.shard_of("well"), [Record(b"1", topic="t")])
        await well.wait_for(1)
        await trio.sleep(60)
        state = await look(store, QUEUE)
        assert state.status is not None
        assert state.status.state in ("down", "retrying")
        assert "unexpected error" in state.status.reason
        assert state.depth.record_count == 30
        assert state.dead_letter_count == 0
        broken.raises = None
        await until_empty(store)
        nursery.cancel_scope.cancel()
    assert broken.values == numbers(0, 30)


async def test_a_sink_that_cannot_be_opened_any_more_ends_nothing_either(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    """A missing file of certificates was only logged, and the queue looked as if it were just starting."""
    shelf = Shelf()
    async with trio.open_nursery() as nursery:
        await nursery.start(Bridges(store, [spec_for(shelf)], "here").run)
        shelf.opens = lambda: ConfigurationError("ca_file cannot be read")
        shelf.raises = lambda: KeyError("so that it is opened again")
        await put(store, 0, 5)
        await trio.sleep(60)
        state = await look(store, QUEUE)
        assert state.status is not None
        assert "ca_file cannot be read" in state.status.reason
        shelf.opens = shelf.raises = None
        await until_empty(store)
        nursery.cancel_scope.cancel()
    assert shelf.values == numbers(0, 5)


async def test_a_message_of_the_year_ten_thousand_is_set_aside(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    """The overflow of its time ended the broker, and again after each restart."""
    shelf = Shelf()
    projection = Projection({"payload": "payload", "at": "time"})
    async with trio.open_nursery() as nursery:
        await nursery.start(Bridges(store, [spec_for(shelf, projection=projection)], "here").run)
        late = Record(b"late", topic="t", timestamp_us=253_402_300_800_000_000)
        await store.append(names.shard_of(QUEUE), [late, Record(b"1", topic="t")])
        state = await until_empty(store)
        nursery.cancel_scope.cancel()
    assert shelf.values == [b"1"]
    assert state.dead_letter_count == 1


@pytest.mark.parametrize("names_culprit", [False, True])
async def test_a_batch_of_which_every_row_is_refused_becomes_dead_letters(
    store: StorageAdapter, autojump_clock: MockClock, names_culprit: bool
) -> None:
    """The parting of a batch called itself for each refused row: a thousand of them ended the broker."""
    count = 1500
    shelf = Shelf(refuses=lambda _: True, names_culprit=names_culprit)
    await put(store, 0, count)
    async with trio.open_nursery() as nursery:
        await nursery.start(Bridges(store, [spec_for(shelf, batch_records=count, max_refusals=1)], "here").run)
        state = await until_empty(store)
        nursery.cancel_scope.cancel()
    assert state.dead_letter_count == count
    assert shelf.values == []
