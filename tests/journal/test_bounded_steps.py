"""Work that grows with what is stored is done in steps, so that the loop serves others in between."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from journal.engine import time_slice
from journal.engine.segments import view_cleanup
from journal.engine.segments.view_cleanup import _REMOVED_AT_ONCE
from journal.engine.wal.group_commit import MOST_DECISIONS, MOST_WORDS
from journal.engine.write import admission
from journal.engine.write.transactions import MOST_CHANGES, Put
from shards.errors import LimitExceededError
from shards.format.batch import encode
from shards.format.record import Record
from shards.model import ShardConfig
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.views import leftovers
from shards.views.inverted_index import word_count, words_of
from shards.views.state_store import StateStore, expiry_key
from tests.journal.engines import DATA, append, config, open_simulated, stop_without_checkpoint
from tests.patience import PATIENCE_S
from tests.shards.batches import NOW_US
from tests.simulation.file_system import SimulatedFileSystem

WORDS = 1500
INDEXED = ShardConfig(index_keys=True)


def left_of(store: MemoryStore, shard_id: int) -> list[bytes]:
    number = shard_id.to_bytes(8, "big")
    places = ((Family.CURSORS, number), (Family.PRODUCERS, b"s" + number), (Family.KEY_INDEX, number))
    return [key for family, prefix in places for key, _ in store.scan(family, prefix)]


def batch_with_keys(count: int) -> bytes:
    return encode([Record(b"v", key=b"%d" % number, timestamp_us=NOW_US) for number in range(count)], now_us=NOW_US)


async def test_the_deletion_of_an_indexed_shard_was_one_write_of_all_its_keys() -> None:
    """A shard with 300,000 indexed keys held the loop for 560 ms when it was deleted."""
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        store = engine.parts.views.store
        assert isinstance(store, MemoryStore)
        info = await engine.create_shard("a", INDEXED)
        shard = engine.parts.table.by_name("a")
        for _ in range(3):
            await engine.append(shard, batch_with_keys(WORDS))
        await engine.commit_cursor("a", "c", 5, None)
        largest = 0
        write = store.write

        def measured(mutations: Mutations) -> None:
            nonlocal largest
            largest = max(largest, len(mutations))
            write(mutations)

        store.write = measured  # type: ignore[method-assign]
        await engine.delete_shard("a")
        await engine.parts.view_cleanup.remove_leftovers()
        assert not left_of(store, info.shard_id)
        assert not list(leftovers.noted(store))
        assert largest <= _REMOVED_AT_ONCE + 2


async def test_what_a_deleted_shard_left_is_removed_after_a_crash_and_never_seen_again() -> None:
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        old = await engine.create_shard("a", INDEXED)
        await engine.append(engine.parts.table.by_name("a"), batch_with_keys(WORDS))
        await engine.commit_cursor("a", "c", 5, None)
        await engine.parts.checkpointer.checkpoint()
        await engine.delete_shard("a")
        await engine.create_shard("a", INDEXED)
        assert engine.get_cursor("a", "c") is None
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        store = engine.parts.views.store
        assert isinstance(store, MemoryStore)
        shard_id = engine.shard("a").shard_id
        assert shard_id != old.shard_id
        assert engine.list_cursors("a") == []
        assert list(engine.parts.views.word_index.offsets(shard_id, "key", b"1", 0)) == []
        with trio.fail_after(5):
            while engine.parts.views.leftovers:
                await engine.parts.view_cleanup.remove_leftovers()
        assert left_of(store, old.shard_id) == []


def test_leftovers_go_on_where_they_stopped() -> None:
    """Each step began at the first key and passed over all that the steps before had deleted: 30 s for 300,000."""
    store = MemoryStore()
    mutations = Mutations()
    for number in range(25):
        mutations.put(Family.KEY_INDEX, (7).to_bytes(8, "big") + b"%02d" % number, b"")
        mutations.put(Family.CURSORS, (7).to_bytes(8, "big") + b"%02d" % number, b"")
    mutations.put(Family.CURSORS, (8).to_bytes(8, "big"), b"")
    leftovers.note(mutations, 7)
    store.write(mutations)
    starts = []
    scan = store.scan

    def noted(family: Family, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False):  # type: ignore[no-untyped-def]
        starts.append((family, start))
        return scan(family, prefix, start=start, reverse=reverse)

    store.scan = noted  # type: ignore[method-assign, assignment]
    place: leftovers.Place | None = leftovers.BEGINNING
    counts = []
    while place is not None:
        mutations = Mutations()
        removed, place = leftovers.remove_some(store, mutations, 7, 10, place)
        store.write(mutations)
        counts.append(removed)
    assert counts == [10, 10, 10, 10, 10, 0] or sum(counts) == 50
    assert all(one != other for one, other in itertools.pairwise(starts))
    store.scan = scan  # type: ignore[method-assign]
    assert [key for family in Family for key, _ in store.scan(family)] == [(8).to_bytes(8, "big")]


async def test_a_scan_that_passes_over_expired_values_reads_a_bounded_number_at_once() -> None:
    """Values that have expired and are not removed yet were all passed over in one step of the loop."""
    store = MemoryStore()
    state = StateStore(store)
    mutations = Mutations()
    for number in range(50):
        state.fold_put(mutations, b"%02d" % number, b"v", number + 1, 0 if number in {3, 48} else 10)
    store.write(mutations)
    steps = [value and value.key for value in state.scan_in_steps(b"", 20)]
    assert steps == [b"%02d" % number if number in {3, 48} else None for number in range(50)]


def test_an_expiry_that_is_put_behind_a_scan_under_way_is_found_by_the_next_one() -> None:
    """A scan remembers where the index of expiries begins; what was put before that place meanwhile was forgotten."""
    store = MemoryStore()
    state = StateStore(store)

    def put(key: bytes, expires_at_us: int) -> None:
        mutations = Mutations()
        state.fold_put(mutations, key, b"", 1, expires_at_us)
        store.write(mutations)

    put(b"b", 20)
    read = store.scan_in_steps

    def paused(family: Family, prefix: bytes = b"", *, start: bytes | None = None) -> Iterator[Any]:
        yield None
        yield from list(read(family, prefix, start=start))

    store.scan_in_steps = paused  # type: ignore[method-assign]
    scan = state.expired_in_steps(30)
    assert next(scan) is None
    put(b"a", 10)
    # The pause came after this entry had been passed.
    store.scan_in_steps = lambda *arguments, **named: iter([(expiry_key(20, b"b"), b"")])  # type: ignore[method-assign]
    assert list(scan)
    store.scan_in_steps = read  # type: ignore[method-assign]
    assert state.expired(30, 10) == [b"a", b"b"]


async def test_a_checkpoint_waited_until_all_expired_state_was_removed(autojump_clock: trio.testing.MockClock) -> None:
    """The background work removed 500,000 values before it looked at anything else: for minutes on a slow disk."""
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        removing, going_on = trio.Event(), trio.Event()

        async def slow() -> None:
            removing.set()
            await going_on.wait()

        engine.parts.commands.expire_state = slow  # type: ignore[method-assign]
        with trio.fail_after(3600):
            await removing.wait()
        # A checkpoint works in threads, during which the clock would jump over any time limit.
        autojump_clock.autojump_threshold, autojump_clock.rate = math.inf, 1.0
        made = engine.parts.checkpointer.checkpoints

        async def nothing() -> None:
            pass

        with trio.fail_after(PATIENCE_S):
            await engine.parts.checkpointer.after_checkpoint(nothing)
        assert engine.parts.checkpointer.checkpoints == made + 1
        going_on.set()


async def test_a_cursor_made_the_next_checkpoint_save_its_shard_again() -> None:
    """A group that noted its positions in 100,000 shards opened all of them and had all their records rewritten."""
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        await engine.create_shard("a", ShardConfig())
        await append(engine, "a", b"0")
        await engine.parts.checkpointer.checkpoint()
        assert not engine.parts.checkpointer.dirty
        await engine.commit_cursor("a", "c", 1, None)
        await engine.commit_cursor("a", "gone", 1, None)
        await engine.delete_cursor("a", "gone", None)
        assert not engine.parts.checkpointer.dirty
        await engine.trim("a", 1)
        assert engine.parts.checkpointer.dirty
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        assert [(cursor.name, cursor.offset) for cursor in engine.list_cursors("a")] == [("c", 1)]


async def test_state_that_was_put_again_since_it_was_found_expired_is_not_removed() -> None:
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        await engine.put_state(b"k", b"old", None, 1)
        await engine.put_state(b"gone", b"old", None, 1)
        found = engine.parts.views.state.expired_in_steps

        def before_a_pause(now_us: int) -> Iterator[bytes | None]:
            yield b"k"
            yield from found(now_us)

        engine.parts.views.state.expired_in_steps = before_a_pause  # type: ignore[method-assign]
        await engine.put_state(b"k", b"new", None, 0)
        await engine.parts.commands.expire_state()
        left = [value.key for value in engine.parts.views.state.scan(b"", 0, limit=9)]
        assert left == [b"k"]
        assert engine.get_state(b"k") is not None


async def test_shards_that_are_closed_together_are_not_freed_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list kept 90,000 closed shards until the last one was closed: to free them took 130 ms."""
    monkeypatch.setattr(time_slice, "_STEP_S", 0.0)
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        for number in range(20):
            await engine.create_shard(f"s/{number}", ShardConfig())
        await engine.parts.checkpointer.checkpoint()
        shards = weakref.WeakSet(engine.parts.table.open_shards())
        engine.parts.table.most_open = 0
        counts = []

        async def rest(self: time_slice.TimeSlice) -> None:
            counts.append(len(shards))

        monkeypatch.setattr(time_slice.TimeSlice, "rest", rest)
        await engine.parts.checkpointer.retention.close_idle()
        assert len(shards) == 0
        # The one that was closed last is still at hand.
        assert counts == list(range(20, 0, -1))


async def test_a_long_list_is_not_freed_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a merge, 80,000 of ten thousand quiet shards, were freed at once when it ended: that took 50 ms."""
    monkeypatch.setattr(time_slice, "_STEP_S", 0.0)
    monkeypatch.setattr(time_slice, "_FREED_AT_ONCE", 3)

    class Part:
        pass

    items = [Part() for _ in range(10)]
    parts = weakref.WeakSet(items)
    counts = []

    async def rest(self: time_slice.TimeSlice) -> None:
        counts.append(len(parts))

    monkeypatch.setattr(time_slice.TimeSlice, "rest", rest)
    await time_slice.release(items)
    assert (items, counts) == ([], [7, 4, 1, 0])


def test_looking_for_what_expired_does_not_begin_with_what_was_removed_long_ago() -> None:
    """Each look passed over the index entries of everything removed before, as long as they were not compacted."""
    store = MemoryStore()
    state = StateStore(store)
    starts = []
    scan = store.scan

    def noted(family: Family, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False):  # type: ignore[no-untyped-def]
        starts.append(start)
        return scan(family, prefix, start=start, reverse=reverse)

    store.scan = noted  # type: ignore[method-assign, assignment]

    def put(key: bytes, expires_at_us: int) -> None:
        mutations = Mutations()
        state.fold_put(mutations, key, b"", 1, expires_at_us)
        store.write(mutations)

    def remove(*keys: bytes) -> None:
        mutations = Mutations()
        for key in keys:
            state.fold_delete(mutations, key)
        store.write(mutations)

    for number in range(4):
        put(b"%d" % number, 10 + number)
    assert state.expired(11, 10) == [b"0", b"1"]
    remove(b"0", b"1")
    assert state.expired(11, 10) == []
    assert state.expired(12, 10) == [b"2"]
    assert starts[-1] is not None
    assert starts[-1].endswith(b"2")
    put(b"late", 5)
    assert state.expired(12, 10) == [b"late", b"2"]


async def test_a_page_of_state_ends_with_its_bytes(tmp_path: Path) -> None:
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        await engine.create_shard("a", ShardConfig())
        await append(engine, "a", b"0")
        for number in range(5):
            await engine.put_state(b"%d" % number, bytes(1000), None, 0)
        page, more = await engine.scan_state(b"", None, 10, 2500)
        assert ([value.key for value in page], more) == ([b"0", b"1", b"2"], True)
        page, more = await engine.scan_state(b"", b"2", 10, 1 << 20)
        assert ([value.key for value in page], more) == ([b"3", b"4"], False)


async def test_many_changes_at_once_were_folded_in_one_step() -> None:
    """20,000 state puts that came together were one group, whose fold held the loop for 170 ms."""
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files, config(journal_file_bytes=4 << 20)) as engine:
        folded: list[int] = []
        fold = engine.parts.views.fold

        def measured(decisions, words=()):  # type: ignore[no-untyped-def]
            folded.append(len(decisions))
            fold(decisions, words)

        engine.parts.views.fold = measured  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            for number in range(3 * MOST_DECISIONS):
                nursery.start_soon(engine.parts.commands.put_state, b"%d" % number, b"v", None, 0)
        assert sum(folded) == 3 * MOST_DECISIONS
        assert max(folded) <= MOST_DECISIONS
        # What has to be made together stays together.
        puts = [Put(b"p%d" % number, b"v") for number in range(MOST_DECISIONS + 10)]
        await engine.parts.transactions.commit([], puts, [])
        assert folded[-1] == len(puts)


async def test_one_commit_of_very_many_changes_held_the_loop_and_is_refused() -> None:
    """A COMMIT of 10,000 puts took 130 ms of processor time in one step."""
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files, config(journal_file_bytes=16 << 20)) as engine:
        puts = [Put(b"p%d" % number, b"v") for number in range(MOST_CHANGES + 1)]
        with pytest.raises(LimitExceededError, match=r"2501 changes .* over the limit of 2500; put what"):
            await engine.parts.transactions.commit([], puts, [])
        assert engine.get_state(b"p0") is None
        await engine.parts.transactions.commit([], puts[1:], [])


async def test_one_batch_of_very_many_indexed_keys_held_the_loop_and_is_refused() -> None:
    """An append of 50,000 records to an indexed shard took 175 ms of processor time in one step."""
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files, config(journal_file_bytes=16 << 20)) as engine:
        await engine.create_shard("a", INDEXED)
        shard = engine.parts.table.by_name("a")
        with pytest.raises(LimitExceededError, match=r"10001 keys and tags .* limit of 10000 in one batch; send fewer"):
            await engine.append(shard, batch_with_keys(MOST_WORDS + 1))
        assert shard.next_offset == 0
        await engine.append(shard, batch_with_keys(MOST_WORDS))
        half = batch_with_keys(MOST_WORDS // 2 + 1)
        with pytest.raises(LimitExceededError, match="a commit with 10002 keys and tags"):
            await engine.parts.transactions.commit([("a", half), ("a", half)], [], [])


@pytest.mark.parametrize("record_count", [1, 50])
async def test_very_many_tags_of_a_few_records_are_refused_before_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch, record_count: int
) -> None:
    """8 MB of tags of one byte took 2.8 s in one step before they were refused."""
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files, config(journal_file_bytes=16 << 20)) as engine:
        await engine.create_shard("a", ShardConfig(index_tags=True))
        shard = engine.parts.table.by_name("a")
        tags = ("t",) * (MOST_WORDS // record_count)
        fits = encode([Record(b"v", tags=tags)] * record_count, now_us=1)
        above = encode([Record(b"v", tags=tags)] * record_count + [Record(b"v", tags=("t",))], now_us=1)
        await engine.append(shard, fits)
        monkeypatch.setattr(admission, "words_of", None)
        with pytest.raises(LimitExceededError, match=r"10001 keys and tags .* limit of 10000 in one batch"):
            await engine.append(shard, above)
        assert shard.next_offset == record_count


def test_empty_keys_and_unwanted_columns_are_no_words() -> None:
    records = [Record(b"v", key=b"" if number % 2 else b"k", tags=("a", "", "b")) for number in range(10)]
    batch = memoryview(encode(records, now_us=1))
    for wanted in (ShardConfig(), INDEXED, ShardConfig(index_tags=True), ShardConfig(index_keys=True, index_tags=True)):
        assert word_count(wanted, batch) == len(words_of(wanted, batch))


async def test_the_words_of_many_batches_were_folded_in_one_step() -> None:
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files, config(journal_file_bytes=16 << 20)) as engine:
        await engine.create_shard("a", INDEXED)
        shard = engine.parts.table.by_name("a")
        folded: list[int] = []
        fold = engine.parts.views.fold

        def measured(decisions, words=()):  # type: ignore[no-untyped-def]
            folded.append(sum(len(found) for _, _, found in words))
            fold(decisions, words)

        engine.parts.views.fold = measured  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(engine.append, shard, batch_with_keys(MOST_WORDS // 4))
        assert sum(folded) == 9 * (MOST_WORDS // 4)
        assert max(folded) <= MOST_WORDS
        assert shard.published_offset == 9 * (MOST_WORDS // 4)


def test_after_a_crash_the_rest_of_what_a_shard_left_is_looked_for_behind_what_was_removed() -> None:
    """The first step of a start passed over all keys that were removed before: 65 to 100 ms for 300,000."""
    store = MemoryStore()
    mutations = Mutations()
    for number in range(25):
        mutations.put(Family.KEY_INDEX, (7).to_bytes(8, "big") + b"%02d" % number, b"")
    leftovers.note(mutations, 7)
    store.write(mutations)
    mutations = Mutations()
    removed, place = leftovers.remove_some(store, mutations, 7, 10)
    store.write(mutations)
    assert removed == 10
    assert place is not None
    assert place[1] > (7).to_bytes(8, "big") + b"09"
    assert list(leftovers.noted(store)) == [(7, place)]
    mutations = Mutations()
    assert leftovers.remove_some(store, mutations, 7, 100, place) == (15, None)
    store.write(mutations)
    assert not list(leftovers.noted(store))
    assert not list(store.scan(Family.KEY_INDEX))


async def test_the_index_of_trimmed_records_was_cleaned_to_its_end_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_cleanup, "_UNINDEXED_AT_ONCE", 10)
    monkeypatch.setattr(view_cleanup, "_STEPS_IN_A_TURN", 3)
    files = SimulatedFileSystem()
    files.mkdir(DATA)
    async with open_simulated(files) as engine:
        info = await engine.create_shard("a", INDEXED)
        await engine.append(engine.parts.table.by_name("a"), batch_with_keys(100))
        store = engine.parts.views.store
        assert isinstance(store, MemoryStore)
        # The background task would clean as well, between two steps.
        clean = engine.parts.view_cleanup.clean_indexes

        async def nothing() -> bool:
            return False

        monkeypatch.setattr(engine.parts.view_cleanup, "clean_indexes", nothing)
        shard = engine.parts.table.by_name("a")
        shard.start_offset = 100
        engine.parts.view_cleanup.index_trimmed(shard)
        assert await clean()
        assert len(left_of(store, info.shard_id)) == 70
        monkeypatch.setattr(engine.parts.view_cleanup, "clean_indexes", clean)
        engine.parts.checkpointer.wake()
        with trio.fail_after(PATIENCE_S):
            while left_of(store, info.shard_id):
                await trio.sleep(0.01)
