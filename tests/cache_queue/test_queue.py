"""A queue in the store, on every engine: making it, its operator's wishes, purging it, deleting it."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import (
    LeaseSettings,
    Overflow,
    QueueLease,
    QueueMode,
    QueueSettings,
    ensure_queue,
    list_queues,
    look,
    names,
)
from broker_adapter.cache_queue.dead_letters import count_dead_letters
from broker_adapter.cache_queue.errors import QueueLostError, QueueNotFoundError
from broker_adapter.cache_queue.progress import total
from broker_adapter.cache_queue.queue import (
    change_queue,
    definition_of,
    delete_queue,
    keep_within_bounds,
    purge_queue,
    settings_of,
)
from broker_adapter.cache_queue.stored import Counts, Lease, WriterCounts
from broker_adapter.state_forms import encode
from shards.errors import InvalidNameError, InvalidRequestError, ShardNotFoundError, StorageError
from shards.model import AckLevel, Mode, StateValue
from tests.adapter_contract.conftest import Opening
from tests.cache_queue.queues import NAME, driven, filled, records, report, waiting
from tests.mqtt.session.faults import Path as StorePath

SETTINGS = QueueSettings(max_records=100, max_age_s=60, overflow=Overflow.DROP_NEWEST)


async def test_making_a_queue_again_changes_nothing(adapter: StorageAdapter) -> None:
    first = await ensure_queue(adapter, NAME, SETTINGS)
    await filled(adapter, b"1", settings=SETTINGS)
    assert await ensure_queue(adapter, NAME, SETTINGS) == first
    assert await list_queues(adapter) == [NAME]
    assert (await look(adapter, NAME)).depth.record_count == 1


async def test_other_settings_are_taken_over_and_the_operators_wishes_stay(adapter: StorageAdapter) -> None:
    first = await ensure_queue(adapter, NAME, SETTINGS)
    await change_queue(adapter, NAME, is_paused=True, wake=True)
    other = QueueSettings(max_bytes=0, max_records=7, overflow=Overflow.REJECT, mode=QueueMode.HYBRID)
    changed = await ensure_queue(adapter, NAME, other)
    assert settings_of(changed) == other
    assert (changed.queue_id, changed.is_paused, changed.wake_count) == (first.queue_id, True, 1)


async def test_settings_are_read_as_they_were_stored(adapter: StorageAdapter) -> None:
    assert settings_of(await ensure_queue(adapter, NAME, SETTINGS)) == SETTINGS


async def test_settings_that_this_program_does_not_know_are_left_alone(adapter: StorageAdapter) -> None:
    stored = await ensure_queue(adapter, NAME, SETTINGS)
    stored.settings["max_moons"] = 3
    assert settings_of(stored) == SETTINGS


async def test_many_may_make_it_at_once_and_all_mean_the_same(adapter: StorageAdapter) -> None:
    ids = set()

    async def make() -> None:
        ids.add((await ensure_queue(adapter, NAME, SETTINGS)).queue_id)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(make)
    assert len(ids) == 1


async def test_a_queue_whose_shard_was_deleted_begins_anew(adapter: StorageAdapter) -> None:
    """Its id names it towards sinks, which would otherwise take new records for ones that they have."""
    await filled(adapter, b"1", b"2")
    drain = await driven(adapter)
    await drain.confirm(2, Counts(confirmed=2), 0)
    await report(adapter, drain)
    before = await definition_of(adapter, NAME)
    await adapter.delete_shard(names.shard_of(NAME))
    with pytest.raises(QueueNotFoundError, match="was deleted"):
        await look(adapter, NAME)
    after = await ensure_queue(adapter, NAME, QueueSettings())
    assert after.queue_id != before.queue_id
    assert (await driven(adapter)).counts == Counts()


@pytest.mark.parametrize("name", ["", "a/b", "a+", "-a", "x" * 65, "ä"])
async def test_names_that_cannot_be_are_refused(adapter: StorageAdapter, name: str) -> None:
    with pytest.raises(InvalidNameError, match="letters, digits"):
        await ensure_queue(adapter, name, SETTINGS)
    with pytest.raises(InvalidNameError):
        await definition_of(adapter, name)


async def test_what_is_not_there_is_said(adapter: StorageAdapter) -> None:
    for asking in (look, definition_of, purge_queue, delete_queue, change_queue):
        with pytest.raises(QueueNotFoundError, match="journal queue list"):
            await asking(adapter, "nothing")


async def test_purging_throws_away_what_waits_and_nothing_else(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2", b"3")
    drain = await driven(adapter)
    await drain.confirm(1, Counts(confirmed=1), 0)
    assert await purge_queue(adapter, NAME) == 2
    await filled(adapter, b"4")
    after = await driven(adapter, 2)
    assert [record.value for record in await waiting(after)] == [b"4"]
    assert await look(adapter, NAME) is not None
    assert (await look(adapter, NAME)).progress.counts == Counts(confirmed=1, purged=2)
    assert await purge_queue(adapter, NAME) == 1
    assert await purge_queue(adapter, NAME) == 0
    assert (await look(adapter, NAME)).depth.record_count == 0


async def test_purged_records_are_not_counted_as_confirmed(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2", b"3")
    drain = await driven(adapter)
    await drain.confirm(1, Counts(confirmed=1), 0)
    await report(adapter, drain)
    await purge_queue(adapter, NAME)
    with pytest.raises(QueueLostError, match="changed by another process"):
        await drain.confirm(2, Counts(confirmed=1), 0)
    second = await driven(adapter, 2)
    assert second.counts == Counts(confirmed=1, purged=2)
    await report(adapter, second)
    await filled(adapter, b"4")
    await second.confirm(4, Counts(confirmed=1), 0)
    # Its driver is killed before it has written that down.
    assert (await driven(adapter, 3)).counts == Counts(confirmed=2, purged=2)


async def test_a_purge_beside_a_driver_counts_each_record_once(adapter: StorageAdapter) -> None:
    count = 200
    await filled(adapter, *(b"%d" % number for number in range(count)))
    drain = await driven(adapter)
    purged = 0

    async def purge() -> None:
        nonlocal purged
        purged = await purge_queue(adapter, NAME)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(purge)
        try:
            for offset in range(1, count + 1):
                await drain.confirm(offset, Counts(confirmed=1), 0)
        except QueueLostError:
            pass
    assert drain.counts.confirmed + purged == count
    await report(adapter, drain)
    counts = (await driven(adapter, 2)).counts
    assert counts == Counts(confirmed=drain.counts.confirmed, purged=purged)
    assert total(counts) == count


@pytest.mark.few_cases(2, "waits for a lease for each engine")
async def test_a_queue_that_is_driven_is_not_deleted(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1")
    async with QueueLease(adapter, NAME, "broker 1").hold():
        with pytest.raises(InvalidRequestError, match="driven by broker 1"):
            await delete_queue(adapter, NAME)
    await delete_queue(adapter, NAME)
    assert await list_queues(adapter) == []


async def test_nothing_is_left_of_a_deleted_queue(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2")
    drain = await driven(adapter)
    await drain.set_aside([((await waiting(drain))[0], "no such table")])
    await drain.confirm(1, Counts(dead_lettered=1), 0)
    await report(adapter, drain)
    await adapter.put_state(names.writer_key(NAME, "w"), encode(WriterCounts(1, 2)))
    async with QueueLease(adapter, NAME, "broker 1").hold():
        pass
    await delete_queue(adapter, NAME)
    assert [value.key async for value in adapter.scan_state(b"queue")] == []
    assert await adapter.list_shards("$queue/#") == []
    assert await count_dead_letters(adapter, NAME) == 0
    with pytest.raises(ShardNotFoundError):
        await drain.read(1, max_bytes=1000, max_wait_s=0)


async def test_a_look_shows_what_waits_and_since_when(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2", b"3")
    drain = await driven(adapter)
    await drain.confirm(1, Counts(confirmed=1), 0)
    await adapter.put_state(names.writer_key(NAME, "broker 1"), encode(WriterCounts(1, 2)))
    state = await look(adapter, NAME)
    second = (await waiting(drain))[0]
    assert (state.depth.first_offset, state.depth.record_count) == (1, 2)
    assert 0 < state.depth.size_bytes <= state.shard.size_bytes
    assert state.oldest_us == second.append_time_us
    assert state.writers == {"broker 1": WriterCounts(1, 2)}
    assert (state.status, state.lease, state.dead_letter_count) == (None, None, 0)


@pytest.mark.parametrize(("trimmed_offset", "is_any_left"), [(2, True), (3, False)])
async def test_a_look_does_not_mind_that_what_it_sees_is_brought_away(
    adapter: StorageAdapter, monkeypatch: pytest.MonkeyPatch, trimmed_offset: int, is_any_left: bool
) -> None:
    await filled(adapter, b"1", b"2", b"3")
    get_state = type(adapter).get_state

    async def bring_away(self: StorageAdapter, key: bytes) -> StateValue | None:
        found = await get_state(self, key)
        if key == names.progress_key(NAME):
            await self.trim(names.shard_of(NAME), trimmed_offset)
        return found

    monkeypatch.setattr(type(adapter), "get_state", bring_away)
    state = await look(adapter, NAME)
    assert state.depth.record_count == 3
    assert bool(state.oldest_us) is is_any_left


async def test_what_waits_and_what_was_wished_survive(opening: Opening) -> None:
    async with opening() as adapter:
        await filled(adapter, b"1", b"2", b"3")
        drain = await driven(adapter)
        await drain.confirm(2, Counts(confirmed=2), 0)
        await change_queue(adapter, NAME, is_paused=True)
        before = await definition_of(adapter, NAME)
    async with opening() as adapter:
        assert await definition_of(adapter, NAME) == before
        assert before.is_paused
        drain = await driven(adapter, 2)
        assert [record.value for record in await waiting(drain)] == [b"3"]
        assert drain.counts == Counts(confirmed=2)


class FailingTrim(StorePath):
    """A way to the store on which trims and deletions of shards can fail too."""

    async def trim(self, name: str, before_offset: int) -> object:
        return await self._pass("trim", name, lambda: self._store.trim(name, before_offset))

    async def delete_shard(self, name: str) -> object:
        return await self._pass("delete_shard", name, lambda: self._store.delete_shard(name))


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("call", ["put_state", "trim"])
async def test_a_purge_that_is_killed_counts_each_record_once(
    adapter: StorageAdapter, call: str, carried_out: bool
) -> None:
    """The count was stored before the cursor was moved: killed in between, the next purge counted the records again."""
    await filled(adapter, b"1", b"2", b"3")
    path = FailingTrim(adapter)
    path.fail(lambda name, _: name == call, carried_out=carried_out)
    with pytest.raises(StorageError, match="before the reply"):
        await purge_queue(path, NAME)
    is_done = carried_out or call == "trim"
    assert await purge_queue(adapter, NAME) == (0 if is_done else 3)
    assert (await look(adapter, NAME)).progress.counts == Counts(purged=3)
    assert (await driven(adapter)).counts == Counts(purged=3)


async def test_purged_dead_letters_are_counted_as_dead_letters(adapter: StorageAdapter) -> None:
    """Each record ends in one count: what was set aside and not confirmed is not thrown away, but kept."""
    await filled(adapter, b"1", b"2", b"3")
    drain = await driven(adapter)
    await drain.set_aside([((await waiting(drain))[1], "no")])
    assert await purge_queue(adapter, NAME) == 2
    assert (await look(adapter, NAME)).progress.counts == Counts(dead_lettered=1, purged=2)
    assert await count_dead_letters(adapter, NAME) == 1


@pytest.mark.parametrize("before", [QueueMode.MEMORY, QueueMode.HYBRID])
async def test_a_queue_that_is_changed_to_files_is_one_of_files(opening: Opening, before: QueueMode) -> None:
    """`queue show` said file and the shard stayed in memory: what was acknowledged then was gone after a kill."""
    async with opening() as adapter:
        await ensure_queue(adapter, NAME, QueueSettings(mode=before))
        definition = await ensure_queue(adapter, NAME, QueueSettings(mode=QueueMode.FILE))
        assert settings_of(definition).mode is QueueMode.FILE
        info = await adapter.describe_shard(names.shard_of(NAME))
        assert info.config.mode is Mode.FILE
        appended = await adapter.append(names.shard_of(NAME), records(b"1"))
        assert appended.level is AckLevel.DURABLE


@pytest.mark.parametrize("call", ["set_mode", "put_state"])
async def test_a_change_of_mode_that_is_cut_off_is_carried_out_by_the_next_look(
    adapter: StorageAdapter, call: str
) -> None:
    """The definition and the mode of the shard are two steps: the next reader of the queue makes them agree."""
    before, after = QueueSettings(mode=QueueMode.MEMORY), QueueSettings(mode=QueueMode.FILE)
    await ensure_queue(adapter, NAME, before)
    path = FailingMode(adapter)
    path.fail(lambda name, _: name == call, carried_out=False)
    with pytest.raises(StorageError):
        await ensure_queue(path, NAME, after)
    definition = await definition_of(adapter, NAME)
    info = await adapter.describe_shard(names.shard_of(NAME))
    await keep_within_bounds(adapter, NAME, settings_of(definition), info, 0)
    info = await adapter.describe_shard(names.shard_of(NAME))
    assert info.config.mode is settings_of(definition).shard_config.mode


class FailingMode(StorePath):
    """A way to the store on which changes of a shard's mode can fail too."""

    async def set_mode(self, name: str, mode: Mode) -> object:
        return await self._pass("set_mode", name, lambda: self._store.set_mode(name, mode))


async def test_other_bounds_change_the_size_of_segments(adapter: StorageAdapter) -> None:
    await ensure_queue(adapter, NAME, QueueSettings(max_bytes=1 << 30))
    smaller = QueueSettings(max_bytes=32 << 20)
    await ensure_queue(adapter, NAME, smaller)
    info = await adapter.describe_shard(names.shard_of(NAME))
    assert info.config.segment_bytes == smaller.shard_config.segment_bytes == 1 << 20


async def killed_driver(adapter: StorageAdapter) -> None:
    """What a driver leaves behind that was killed: a lease that is not given back."""
    lease = Lease("broker-1", "claim", 3, 17)
    await adapter.put_state(names.lease_key(NAME), encode(lease))


async def test_a_queue_whose_driver_was_killed_can_be_deleted(adapter: StorageAdapter) -> None:
    """Its lease named a driver for ever, so it could never be deleted."""
    await filled(adapter, b"1")
    await killed_driver(adapter)
    waited: list[str] = []
    began_s = trio.current_time()
    await delete_queue(adapter, NAME, lease=LeaseSettings(lease_s=0.6, renew_interval_s=0.2), on_wait=waited.append)
    assert trio.current_time() - began_s >= 0.6
    assert waited == ["broker-1"]
    assert [value.key async for value in adapter.scan_state(b"queue")] == []
    assert await adapter.list_shards("$queue/#") == []


@pytest.mark.parametrize("call", ["delete_shard", "commit"])
async def test_a_deletion_that_is_killed_is_done_by_the_next(adapter: StorageAdapter, call: str) -> None:
    """The definition went first: killed behind that, the shards stayed for ever and no command knew of them."""
    await filled(adapter, b"1")
    path = FailingTrim(adapter)
    path.fail(lambda name, _: name == call, carried_out=True)
    with pytest.raises(StorageError, match="before the reply"):
        await delete_queue(path, NAME)
    if call == "delete_shard":
        await delete_queue(adapter, NAME, lease=LeaseSettings(lease_s=0.6, renew_interval_s=0.2))
    assert [value.key async for value in adapter.scan_state(b"queue")] == []
    assert await adapter.list_shards("$queue/#") == []
