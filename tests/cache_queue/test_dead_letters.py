"""Putting dead letters back, each exactly once whatever happens on the way; and throwing them away."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import Overflow, QueueSettings, look, names
from broker_adapter.cache_queue.dead_letters import (
    count_dead_letters,
    list_dead_letters,
    purge_dead_letters,
    replay_dead_letters,
)
from broker_adapter.cache_queue.errors import QueueFullError
from broker_adapter.cache_queue.stored import Counts
from broker_adapter.results import ReadResult
from shards.errors import ShardNotFoundError, StorageError
from shards.format.record import StoredRecord
from shards.seams.clock import ManualClock
from tests.adapter_contract.conftest import Opening
from tests.cache_queue.queues import NAME, driven, filled, records, waiting
from tests.mqtt.session.faults import Path as StorePath

SETTINGS = QueueSettings()


async def refused(adapter: StorageAdapter, *values: bytes, epoch: int = 1) -> None:
    """Have a driver refuse all that waits, which it was given."""
    await filled(adapter, *values)
    drain = await driven(adapter, epoch)
    for record in await waiting(drain):
        await drain.set_aside([(record, "no such column")])
        await drain.confirm(record.offset + 1, Counts(dead_lettered=1), 0)


async def values(adapter: StorageAdapter) -> list[bytes]:
    """What waits in the queue."""
    return [record.value for record in await waiting(await driven(adapter, 99))]


async def stored(adapter: StorageAdapter) -> list[StoredRecord]:
    return list(await waiting(await driven(adapter, 99)))


async def test_they_are_put_back_behind_what_waits_without_their_headers(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1", b"2")
    await filled(adapter, b"3")
    assert await count_dead_letters(adapter, NAME) == 2
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 2
    found = await stored(adapter)
    assert [record.value for record in found] == [b"3", b"1", b"2"]
    assert [record.headers for record in found] == [(), (), ()]
    assert {(record.topic, record.timestamp_us) for record in found} == {("plant/x", 1_000_000)}
    assert await count_dead_letters(adapter, NAME) == 0
    info = await adapter.describe_shard(names.dead_letters_of(NAME))
    assert info.start_offset == info.next_offset == 2


async def test_putting_back_again_does_nothing(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1")
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 1
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 0
    assert await values(adapter) == [b"1"]


async def test_a_record_that_is_refused_again_is_a_dead_letter_again(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1")
    await replay_dead_letters(adapter, NAME, SETTINGS)
    await refused(adapter, epoch=2)
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 1
    assert await values(adapter) == [b"1"]
    assert (await stored(adapter))[0].headers == ()


async def test_nothing_to_put_back_is_no_error(adapter: StorageAdapter) -> None:
    await filled(adapter)
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 0
    assert await purge_dead_letters(adapter, NAME) == 0
    assert [each async for each in list_dead_letters(adapter, NAME)] == []


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("call", ["commit", "trim"])
async def test_a_crash_on_the_way_puts_none_back_twice_and_none_away(
    adapter: StorageAdapter, call: str, carried_out: bool
) -> None:
    await refused(adapter, b"1", b"2", b"3")
    path = FailingTrim(adapter)
    path.fail(lambda name, _: name == call, carried_out=carried_out)
    with pytest.raises(StorageError, match="before the reply"):
        await replay_dead_letters(path, NAME, SETTINGS)
    assert path.failed_count == 1
    again = await replay_dead_letters(adapter, NAME, SETTINGS)
    assert again == (3 if call == "commit" and not carried_out else 0)
    assert await values(adapter) == [b"1", b"2", b"3"]
    assert await count_dead_letters(adapter, NAME) == 0


async def test_what_was_put_back_before_a_restart_is_not_put_back_after_it(opening: Opening) -> None:
    async with opening() as adapter:
        await refused(adapter, b"1", b"2")
        path = FailingTrim(adapter)
        path.fail(lambda name, _: name == "trim", carried_out=False)
        with pytest.raises(StorageError):
            await replay_dead_letters(path, NAME, SETTINGS)
    async with opening() as adapter:
        assert await count_dead_letters(adapter, NAME) == 0
        assert await replay_dead_letters(adapter, NAME, SETTINGS) == 0
        await refused(adapter, b"3", epoch=2)
        # All three were refused: the two from before once more.
        assert await count_dead_letters(adapter, NAME) == 3
        assert await replay_dead_letters(adapter, NAME, SETTINGS) == 3
        assert await values(adapter) == [b"1", b"2", b"3"]


async def test_two_operators_at_once_put_each_back_once(adapter: StorageAdapter) -> None:
    await refused(adapter, *(b"%d" % number for number in range(100)))
    counts = []

    async def replay() -> None:
        counts.append(await replay_dead_letters(adapter, NAME, SETTINGS))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(replay)
    assert sum(counts) == 100
    assert await values(adapter) == [b"%d" % number for number in range(100)]


async def test_letters_that_another_call_puts_back_before_they_are_read_are_put_back_once(
    adapter: StorageAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other call also trims them, so the read of this one failed: their offsets were out of range."""
    await refused(adapter, b"1")
    read = adapter.read

    async def overtaken(*arguments: Any, **options: Any) -> ReadResult:
        monkeypatch.setattr(adapter, "read", read)
        assert await replay_dead_letters(adapter, NAME, SETTINGS) == 1
        return await read(*arguments, **options)

    monkeypatch.setattr(adapter, "read", overtaken)
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 0
    assert await values(adapter) == [b"1"]


async def test_many_are_put_back_in_pieces_and_in_order(adapter: StorageAdapter) -> None:
    big = [bytes([number]) * 100_000 for number in range(10)]
    for epoch, value in enumerate(big):
        await refused(adapter, value, epoch=epoch)
    path = StorePath(adapter)
    calls = []
    path.fail(lambda name, _: calls.append(name) or False, carried_out=True)  # type: ignore[func-returns-value]
    assert await replay_dead_letters(path, NAME, SETTINGS) == 10
    assert calls.count("commit") > 1
    assert await values(adapter) == big


async def test_those_that_are_not_confirmed_yet_are_put_back_too(adapter: StorageAdapter) -> None:
    """A driver that was killed between setting aside and confirming knows of its dead letter: it adds no second one."""
    await filled(adapter, b"1", b"2")
    drain = await driven(adapter)
    first, second = await waiting(drain)
    await drain.set_aside([(first, "no")])
    await drain.confirm(1, Counts(dead_lettered=1), 0)
    await drain.set_aside([(second, "no")])
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 2
    after = await driven(adapter, 2)
    await after.set_aside([(second, "no")])
    assert [record.value for record in await waiting(after)] == [b"1", b"2"]
    await after.confirm(2, Counts(dead_lettered=1), 0)
    assert [letter.queue_offset async for letter in list_dead_letters(adapter, NAME)] == []


async def test_those_of_the_queue_before_it_was_made_anew_are_put_back(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1", b"2")
    await adapter.delete_shard(names.shard_of(NAME))
    await filled(adapter, b"3")
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 2
    assert await values(adapter) == [b"3", b"1", b"2"]


async def test_a_full_queue_takes_none_and_says_so(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1")
    await filled(adapter, b"2")
    with pytest.raises(QueueFullError, match="0 dead letters were put back"):
        await replay_dead_letters(adapter, NAME, QueueSettings(max_records=1))
    assert await count_dead_letters(adapter, NAME) == 1
    dropping = QueueSettings(max_records=1, overflow=Overflow.DROP_OLDEST)
    assert await replay_dead_letters(adapter, NAME, dropping) == 1


async def test_their_age_begins_anew(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1")
    clock = ManualClock(4_000_000_000_000_000)
    await replay_dead_letters(adapter, NAME, QueueSettings(max_age_s=60), clock=clock)
    (record,) = await stored(adapter)
    assert record.expires_at_us == clock.now_us() + 60_000_000


async def test_purged_ones_are_gone_and_only_they(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1", b"2")
    assert await purge_dead_letters(adapter, NAME) == 2
    assert await count_dead_letters(adapter, NAME) == 0
    await refused(adapter, b"3", epoch=2)
    assert [letter.record.value async for letter in list_dead_letters(adapter, NAME)] == [b"3"]
    assert (await look(adapter, NAME)).dead_letter_count == 1


async def test_a_purge_that_was_cut_off_is_not_undone(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1", b"2")
    path = FailingTrim(adapter)
    path.fail(lambda name, _: name == "trim", carried_out=False)
    with pytest.raises(StorageError):
        await purge_dead_letters(path, NAME)
    assert await count_dead_letters(adapter, NAME) == 0
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 0
    assert await values(adapter) == []


async def test_a_record_that_was_put_there_by_hand_is_a_dead_letter_too(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1")
    await adapter.append(names.dead_letters_of(NAME), records(b"by hand"))
    found = [(letter.queue_offset, letter.reason) async for letter in list_dead_letters(adapter, NAME)]
    assert found == [(0, "no such column"), (-1, "")]
    assert await replay_dead_letters(adapter, NAME, SETTINGS) == 2
    assert await values(adapter) == [b"1", b"by hand"]


async def test_a_queue_without_a_shard_is_said(adapter: StorageAdapter) -> None:
    await refused(adapter, b"1")
    await adapter.delete_shard(names.shard_of(NAME))
    with pytest.raises(ShardNotFoundError):
        await replay_dead_letters(adapter, NAME, SETTINGS)


class FailingTrim(StorePath):
    """A way to the store on which trims can fail too."""

    async def trim(self, name: str, before_offset: int) -> object:
        return await self._pass("trim", name, lambda: self._store.trim(name, before_offset))
