"""What a bridge promises of the records that wait in its queue, whatever its sink does."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.bridge.batcher import Prepared
from broker_adapter.bridge.driver import BridgeDriver
from broker_adapter.bridge.projection import Projection
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import QueueSettings, QueueState, ensure_queue, look, names
from broker_adapter.cache_queue.dead_letters import DEAD_LETTER_OFFSET, DEAD_LETTER_REASON
from broker_adapter.cache_queue.queue import change_queue, purge_queue
from shards.format.record import Record, StoredRecord
from shards.model import StateValue
from tests.bridge.fakes import Shelf

QUEUE = "warehouse"


@pytest.fixture
async def store() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as adapter:
        yield adapter


def spec_for(shelf: Shelf, **changes: object) -> BridgeSpec:
    return attrs.evolve(
        BridgeSpec(name=QUEUE, topics=("#",), open_sink=shelf.open, batch_records=10),
        **changes,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def driven(store: StorageAdapter, spec: BridgeSpec, holder: str = "here") -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(BridgeDriver(store, spec, holder).run)
        yield
        nursery.cancel_scope.cancel()


async def put(store: StorageAdapter, first: int, last: int) -> None:
    await ensure_queue(store, QUEUE, QueueSettings())
    await store.append(names.shard_of(QUEUE), [Record(b"%d" % number, topic="t") for number in range(first, last)])


async def until_empty(store: StorageAdapter) -> QueueState:
    while (state := await look(store, QUEUE)).depth.record_count:
        await trio.sleep(0.05)
    return state


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


async def test_everything_that_waits_is_brought_once_and_in_order(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf()
    await put(store, 0, 25)
    async with driven(store, spec_for(shelf)):
        await shelf.wait_for(25)
        await put(store, 25, 60)
        await shelf.wait_for(60)
        state = await until_empty(store)
    assert shelf.values == numbers(0, 60)
    assert shelf.largest <= 10
    assert state.depth.first_offset == 60


async def test_an_outage_loses_nothing_and_keeps_the_order(store: StorageAdapter, autojump_clock: MockClock) -> None:
    shelf = Shelf(takes_before_failing=2)
    await put(store, 0, 100)
    async with driven(store, spec_for(shelf)):
        while not shelf.is_out:
            await trio.sleep(0.01)
        await put(store, 100, 200)
        await trio.sleep(100)
        shelf.is_out = False
        await until_empty(store)
    assert shelf.values == numbers(0, 200)


@pytest.mark.parametrize("max_in_flight", [1, 4])
async def test_what_an_outage_left_in_doubt_comes_again_at_most_a_window_of_it(
    store: StorageAdapter, autojump_clock: MockClock, max_in_flight: int
) -> None:
    shelf = Shelf(takes_before_failing=3, half_taken=True, max_in_flight=max_in_flight, write_s=0.01)
    await put(store, 0, 200)
    async with driven(store, spec_for(shelf, window=4)):
        while not shelf.is_out:
            await trio.sleep(0.01)
        shelf.is_out = False
        await until_empty(store)
    assert list(dict.fromkeys(shelf.values)) == numbers(0, 200)
    assert 200 < len(shelf.values) <= 200 + 4 * 10
    assert shelf.largest_under_way <= max_in_flight


@pytest.mark.parametrize("max_in_flight", [1, 4])
async def test_what_the_sink_had_taken_before_an_outage_does_not_come_again(
    store: StorageAdapter, autojump_clock: MockClock, max_in_flight: int
) -> None:
    """The outage of one batch once cancelled the confirmation of those before it."""
    shelf = Shelf(takes_before_failing=3, max_in_flight=max_in_flight, write_s=0.01)
    await put(store, 0, 200)
    async with driven(store, spec_for(shelf, window=4)):
        while not shelf.is_out:
            await trio.sleep(0.01)
        shelf.is_out = False
        await until_empty(store)
    assert shelf.values == numbers(0, 200)


@pytest.mark.parametrize("keeps_position", [False, True])
async def test_a_sink_gets_the_next_batches_while_the_store_confirms_the_one_before_up_to_the_window(
    store: StorageAdapter, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, keeps_position: bool
) -> None:
    """With one batch in flight each waited until the one before was durably confirmed: two thirds of the rate."""
    shelf = Shelf(keeps_position=keeps_position)
    put_state, may_confirm = store.put_state, trio.Event()

    async def slow_put_state(key: bytes, *arguments: Any, **options: Any) -> StateValue:
        if key == names.progress_key(QUEUE) and shelf.values:
            await may_confirm.wait()
        return await put_state(key, *arguments, **options)

    monkeypatch.setattr(store, "put_state", slow_put_state)
    await put(store, 0, 200)
    async with driven(store, spec_for(shelf, window=4)):
        await shelf.wait_for(40)
        await trio.sleep(10)
        assert shelf.values == numbers(0, 40)
        assert (await look(store, QUEUE)).depth.first_offset == 0
        # Two that are prepared, one behind them and one that waits for the window: those that are settled keep no rows.
        gc.collect()
        assert sum(isinstance(each, Prepared) for each in gc.get_objects()) <= 4
        may_confirm.set()
        await until_empty(store)
    assert shelf.values == numbers(0, 200)
    assert shelf.largest_under_way == 1


async def test_a_sink_that_keeps_a_position_gets_nothing_twice(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf(takes_before_failing=3, half_taken=True, keeps_position=True)
    await put(store, 0, 100)
    async with driven(store, spec_for(shelf)):
        while not shelf.is_out:
            await trio.sleep(0.01)
        shelf.is_out = False
        await until_empty(store)
    assert shelf.values == numbers(0, 100)


@pytest.mark.parametrize("names_rows", [False, True])
async def test_what_a_sink_refuses_is_set_aside_with_the_reason_and_all_else_arrives(
    store: StorageAdapter, autojump_clock: MockClock, names_rows: bool
) -> None:
    shelf = Shelf(refuses=lambda value: value in (b"13", b"14", b"57"), names_rows=names_rows)
    await put(store, 0, 100)
    async with driven(store, spec_for(shelf)):
        state = await until_empty(store)
    assert shelf.values == [value for value in numbers(0, 100) if value not in (b"13", b"14", b"57")]
    assert state.dead_letter_count == 3
    letters = (await store.read(names.dead_letters_of(QUEUE), 0)).records
    assert [letter.value for letter in letters if isinstance(letter, StoredRecord)] == [b"13", b"14", b"57"]
    headers = dict(letters[0].headers) if isinstance(letters[0], StoredRecord) else {}
    assert headers[DEAD_LETTER_OFFSET] == b"13"
    assert b"want" in headers[DEAD_LETTER_REASON]


@pytest.mark.parametrize("write_count", range(1, 16))
async def test_what_is_refused_is_set_aside_before_the_sinks_position_passes_it(
    store: StorageAdapter, autojump_clock: MockClock, write_count: int
) -> None:
    """However far the sink came when it went out without a word: no reader would look behind its position again."""
    poison = (b"3", b"8", b"15")
    shelf = Shelf(
        takes_before_failing=write_count,
        half_taken=True,
        keeps_position=True,
        refuses=lambda value: value in poison or value == b"no JSON",
    )
    await put(store, 0, 12)
    await store.append(names.shard_of(QUEUE), [Record(b"no JSON", topic="t")])
    await put(store, 13, 40)
    projection = Projection({"payload": "payload", "json": "json"})
    async with driven(store, spec_for(shelf, max_refusals=1, projection=projection)):
        while not shelf.is_out:
            await trio.sleep(0.01)
        shelf.is_out = False
        await until_empty(store)
        await trio.sleep(2)  # until it has told
        state = await look(store, QUEUE)
    letters = (await store.read(names.dead_letters_of(QUEUE), 0)).records
    set_aside = [letter.value for letter in letters if isinstance(letter, StoredRecord)]
    assert sorted(set_aside) == sorted((*poison, b"no JSON"))
    assert shelf.values == [value for value in numbers(0, 40) if value not in (*poison, b"12")]
    assert state.dead_letter_count == 4
    assert state.status is not None
    assert (state.status.counts.confirmed, state.status.counts.dead_lettered) == (36, 4)


async def test_no_batch_overtakes_one_that_is_parted(store: StorageAdapter, autojump_clock: MockClock) -> None:
    poison = (b"103", b"107")
    shelf = Shelf(refuses=lambda value: value in poison, names_culprit=True, max_in_flight=4, write_s=0.01)
    await put(store, 0, 100)
    async with driven(store, spec_for(shelf, window=8)):
        await shelf.wait_for(100)
        await put(store, 100, 110)
        while not shelf.refusal_count:
            await trio.sleep(0.001)
        # While the batch is written again in parts, the sink would take others.
        await put(store, 110, 150)
        state = await until_empty(store)
    assert list(dict.fromkeys(shelf.values)) == [value for value in numbers(0, 150) if value not in poison]
    assert state.dead_letter_count == 2
    assert shelf.largest_under_way > 1


@pytest.mark.parametrize("max_in_flight", [1, 4])
async def test_what_is_refused_by_itself_and_taken_later_overtakes_nothing(
    store: StorageAdapter, autojump_clock: MockClock, max_in_flight: int
) -> None:
    """A row that the sink refused for a moment came behind rows of later batches, and of its own."""
    refused_once: set[bytes] = set()

    def refuses(value: bytes) -> bool:
        is_first = int(value) % 17 == 3 and value not in refused_once
        refused_once.add(value)
        return is_first

    shelf = Shelf(refuses=refuses, names_rows=True, max_in_flight=max_in_flight, write_s=0.01)
    await put(store, 0, 200)
    async with driven(store, spec_for(shelf, window=8)):
        state = await until_empty(store)
    assert shelf.offsets == sorted(set(shelf.offsets))
    assert len(shelf.offsets) + state.dead_letter_count == 200
    assert 0 < state.dead_letter_count <= 12


async def test_a_row_that_nothing_follows_is_tried_again(store: StorageAdapter, autojump_clock: MockClock) -> None:
    refusals = iter([True, True, False])
    shelf = Shelf(refuses=lambda _: next(refusals, False), names_rows=True)
    await put(store, 0, 1)
    async with driven(store, spec_for(shelf, max_refusals=3)):
        state = await until_empty(store)
    assert shelf.values == [b"0"]
    assert state.dead_letter_count == 0


async def test_batches_behind_a_refused_one_are_written_again(store: StorageAdapter, autojump_clock: MockClock) -> None:
    poison = (b"13", b"14", b"57", b"99")
    shelf = Shelf(refuses=lambda value: value in poison, max_in_flight=4, write_s=0.01)
    await put(store, 0, 200)
    async with driven(store, spec_for(shelf, window=8)):
        state = await until_empty(store)
    assert shelf.values == [value for value in numbers(0, 200) if value not in poison]
    assert state.dead_letter_count == 4
    assert shelf.largest_under_way > 1


async def test_an_outage_refuses_nothing(store: StorageAdapter, autojump_clock: MockClock) -> None:
    shelf = Shelf(is_out=True)
    await put(store, 0, 10)
    async with driven(store, spec_for(shelf, max_refusals=1)):
        await trio.sleep(1000)
        assert (await look(store, QUEUE)).dead_letter_count == 0
        shelf.is_out = False
        await until_empty(store)
    assert shelf.values == numbers(0, 10)


async def test_a_recovering_sink_is_tried_with_a_small_batch_first(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf(is_out=True)
    await put(store, 0, 100)
    async with driven(store, spec_for(shelf, batch_records=64)):
        await trio.sleep(60)
        shelf.is_out = False
        await shelf.wait_for(1)
        assert shelf.largest <= 4
        await until_empty(store)
    assert shelf.values == numbers(0, 100)


async def test_an_open_breaker_leaves_the_sink_alone(store: StorageAdapter, autojump_clock: MockClock) -> None:
    shelf = Shelf(is_out=True)
    await put(store, 0, 1)
    async with driven(store, spec_for(shelf)):
        await trio.sleep(300)
        state = await look(store, QUEUE)
    assert state.status is not None
    assert state.status.state in ("down", "retrying")
    assert state.status.reason == "the shelf is out"
    assert shelf.check_count < 30


async def test_a_paused_bridge_brings_nothing_until_it_is_resumed(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf()
    await put(store, 0, 10)
    async with driven(store, spec_for(shelf)):
        await shelf.wait_for(10)
        await change_queue(store, QUEUE, is_paused=True)
        await trio.sleep(3)
        await put(store, 10, 20)
        await trio.sleep(60)
        state = await look(store, QUEUE)
        assert len(shelf.values) == 10
        assert state.status is not None
        assert state.status.state == "paused"
        await change_queue(store, QUEUE, is_paused=False)
        await shelf.wait_for(20)
    assert shelf.values == numbers(0, 20)


async def test_who_wakes_a_bridge_need_not_wait_for_its_back_off(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf(is_out=True)
    await put(store, 0, 10)
    async with driven(store, spec_for(shelf)):
        await trio.sleep(600)
        shelf.is_out = False
        began_s = trio.current_time()
        await change_queue(store, QUEUE, wake=True)
        await shelf.wait_for(10)
        assert trio.current_time() - began_s < 5


async def test_what_is_purged_is_not_brought_and_what_comes_later_is(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf(is_out=True)
    await put(store, 0, 50)
    async with driven(store, spec_for(shelf)):
        await trio.sleep(10)
        assert await purge_queue(store, QUEUE) == 50
        await put(store, 50, 60)
        shelf.is_out = False
        await shelf.wait_for(10)
    assert shelf.values == numbers(50, 60)


async def test_one_of_two_drivers_drives_and_the_other_continues_when_it_is_gone(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    shelf = Shelf(keeps_position=True)
    await put(store, 0, 50)
    async with driven(store, spec_for(shelf), "second"):
        async with driven(store, spec_for(shelf), "first"):
            await shelf.wait_for(50)
            state = await look(store, QUEUE)
            assert state.lease is not None
            first = state.lease.holder
        await put(store, 50, 100)
        await shelf.wait_for(100)
        await trio.sleep(30)
        state = await look(store, QUEUE)
        assert state.lease is not None
        assert state.lease.holder == "second"
    assert first in ("first", "second")
    assert shelf.values == numbers(0, 100)


async def test_the_rate_limit_holds_while_a_backlog_drains(store: StorageAdapter, autojump_clock: MockClock) -> None:
    shelf = Shelf()
    await put(store, 0, 1000)
    async with driven(store, spec_for(shelf, max_rate=100)):
        began_s = trio.current_time()
        await shelf.wait_for(1000)
        assert 9 < trio.current_time() - began_s < 12


async def test_a_message_that_makes_no_row_is_set_aside_and_the_sink_never_sees_it(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    from broker_adapter.bridge.projection import Projection

    shelf = Shelf()
    await put(store, 0, 2)
    await store.append(names.shard_of(QUEUE), [Record(b"no json", topic="t"), Record(b"3", topic="t")])
    projection = Projection({"payload": "payload", "number": "json"})
    async with driven(store, spec_for(shelf, projection=projection)):
        state = await until_empty(store)
    assert shelf.values == [b"0", b"1", b"3"]
    assert state.dead_letter_count == 1


async def test_counts_are_right_when_an_outage_comes_between_expired_records(
    store: StorageAdapter, autojump_clock: MockClock
) -> None:
    """What one read had left out was counted with its last batch: an outage before that took it from the counts."""
    shelf = Shelf(takes_before_failing=1)
    await ensure_queue(store, QUEUE, QueueSettings())
    mixed = [Record(b"%d" % number, topic="t", expires_at_us=number % 3 == 0) for number in range(60)]
    await store.append(names.shard_of(QUEUE), mixed)
    async with driven(store, spec_for(shelf)):
        while not shelf.is_out:
            await trio.sleep(0.01)
        shelf.is_out = False
        state = await until_empty(store)
    counts = state.progress.counts
    assert (counts.confirmed, counts.expired) == (40, 20)


async def test_counts_tell_what_became_of_every_record(store: StorageAdapter, autojump_clock: MockClock) -> None:
    shelf = Shelf(refuses=lambda value: value == b"7")
    await put(store, 0, 30)
    async with driven(store, spec_for(shelf)):
        await until_empty(store)
        await trio.sleep(15)
        status = (await look(store, QUEUE)).status
    assert status is not None
    assert (status.counts.confirmed, status.counts.dead_lettered) == (29, 1)
