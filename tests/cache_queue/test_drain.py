"""The way out of a queue, on every engine: who may move its cursor, and what becomes of each record."""

from __future__ import annotations

import time

import msgspec
import pytest

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import QueueMode, QueueSettings, names
from broker_adapter.cache_queue.dead_letters import list_dead_letters
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.stored import Counts
from shards.model import Mode, ShardConfig
from tests.adapter_contract.conftest import Engine, Opening
from tests.cache_queue.queues import NAME, driven, filled, records, report, waiting
from tests.mqtt.session.faults import Path as StorePath


async def letters(adapter: StorageAdapter) -> list[tuple[int, bytes, str]]:
    return [(each.queue_offset, each.record.value, each.reason) async for each in list_dead_letters(adapter, NAME)]


async def test_records_come_in_order_and_once(adapter: StorageAdapter) -> None:
    await filled(adapter)
    for number in range(50):
        await filled(adapter, b"%d" % number)
    drain = await driven(adapter)
    seen: list[bytes] = []
    while len(seen) < 50:
        part = await drain.read(drain.offset, max_bytes=500, max_wait_s=0)
        assert len(part.records) < 50
        assert part.first_offset == drain.offset
        seen += [record.value for record in part.records]
        await drain.confirm(part.next_offset, Counts(confirmed=len(part.records)), 100)
    assert seen == [b"%d" % number for number in range(50)]
    assert drain.counts == Counts(confirmed=50)


async def test_a_former_holder_cannot_move_the_cursor(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2")
    first = await driven(adapter, 1)
    second = await driven(adapter, 2)
    with pytest.raises(QueueLostError, match="changed by another process"):
        await first.confirm(2, Counts(confirmed=2), 0)
    assert first.counts == Counts()
    assert [record.value for record in await waiting(second)] == [b"1", b"2"]
    await second.confirm(1, Counts(confirmed=1), 0)
    third = await driven(adapter, 3)
    assert third.offset == 1


async def test_what_was_confirmed_stays_so_after_a_restart(opening: Opening) -> None:
    async with opening() as adapter:
        await filled(adapter, b"1", b"2", b"3")
        drain = await driven(adapter)
        await drain.confirm(1, Counts(confirmed=1), 0)
        await report(adapter, drain)
        await drain.confirm(2, Counts(expired=1), 0)
    async with opening() as adapter:
        drain = await driven(adapter, 2)
        assert drain.offset == 2
        # The driver was killed before it told its status; that a record is done with is stored with what became of it.
        assert drain.counts == Counts(confirmed=1, expired=1)


async def test_expired_records_are_left_out_and_counted(adapter: StorageAdapter) -> None:
    await filled(adapter)
    late = msgspec.structs.replace(records(b"late")[0], expires_at_us=1)
    in_time = msgspec.structs.replace(records(b"in time")[0], expires_at_us=time.time_ns() // 1000 + 3_600_000_000)
    await adapter.append(names.shard_of(NAME), [late, in_time, late, *records(b"lasting")])
    drain = await driven(adapter)
    part = await drain.read(0, max_bytes=1 << 20, max_wait_s=0)
    assert [record.value for record in part.records] == [b"in time", b"lasting"]
    assert (part.next_offset, part.skipped) == (4, Counts(expired=2))


async def test_dropped_records_are_counted_where_they_are_met(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2", b"3", b"4")
    drain = await driven(adapter)
    await drain.confirm(1, Counts(confirmed=1), 0)
    await adapter.trim(names.shard_of(NAME), 3)
    part = await drain.read(1, max_bytes=1 << 20, max_wait_s=0)
    assert (part.records, part.next_offset, part.skipped) == ((), 3, Counts(dropped_oldest=2))
    await drain.confirm(3, part.skipped, 0)
    assert [record.value for record in await waiting(drain)] == [b"4"]
    assert drain.counts == Counts(confirmed=1, dropped_oldest=2)


@pytest.mark.parametrize("values", [(b"2",), (b"2", b"3")], ids=["one record", "two records"])
async def test_what_was_in_memory_is_counted_as_lost(
    surviving_engine: Engine, opening: Opening, values: tuple[bytes, ...]
) -> None:
    if surviving_engine.name == "rocksdb":
        pytest.skip("this engine keeps what is in memory mode as well")
    async with opening() as adapter:
        await filled(adapter, b"1")
        await filled(adapter, *values, settings=QueueSettings(mode=QueueMode.MEMORY))
    end_offset = 1 + len(values)
    async with opening() as adapter:
        drain = await driven(adapter)
        part = await drain.read(0, max_bytes=1 << 20, max_wait_s=0)
        while part.next_offset < end_offset:
            assert part.skipped == Counts()
            part = await drain.read(part.next_offset, max_bytes=1 << 20, max_wait_s=0)
        assert (part.next_offset, part.skipped) == (end_offset, Counts(lost=len(values)))


async def test_a_queue_that_was_made_anew_is_noticed(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2", b"3")
    drain = await driven(adapter)
    await drain.confirm(3, Counts(confirmed=3), 0)
    await adapter.delete_shard(names.shard_of(NAME))
    await filled(adapter, b"4")
    with pytest.raises(QueueLostError, match="created again"):
        await drain.read(3, max_bytes=1 << 20, max_wait_s=0)
    with pytest.raises(QueueLostError):
        await drain.confirm(4, Counts(confirmed=1), 0)


async def test_room_is_given_back(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2")
    drain = await driven(adapter)
    await drain.confirm(1, Counts(confirmed=1), 0)
    await drain.trim()
    assert (await adapter.describe_shard(names.shard_of(NAME))).start_offset == 1
    await drain.confirm(2, Counts(confirmed=1), 1 << 30)
    assert (await adapter.describe_shard(names.shard_of(NAME))).start_offset == 2


# Dead letters


async def test_a_dead_letter_is_kept_as_it_was(adapter: StorageAdapter) -> None:
    await filled(adapter)
    given = msgspec.structs.replace(
        records(b"\xff\x00")[0],
        key=b"k",
        headers=(("a", b"1"), ("a", b"2")),
        tags=("t",),
        expires_at_us=time.time_ns() // 1000 + 3_600_000_000,
    )
    await adapter.append(names.shard_of(NAME), [given])
    drain = await driven(adapter)
    await drain.set_aside([((await waiting(drain))[0], "no column \ud800 é")])
    (letter,) = [each async for each in list_dead_letters(adapter, NAME)]
    # It waits for a reader, however long that takes.
    assert letter.record == msgspec.structs.replace(given, expires_at_us=0)
    assert (letter.queue_offset, letter.reason) == (0, "no column \\ud800 é")


async def test_a_crash_between_setting_aside_and_confirming_adds_no_second_dead_letter(
    adapter: StorageAdapter,
) -> None:
    await filled(adapter, b"0", b"1", b"2", b"3")
    drain = await driven(adapter)
    found = await waiting(drain)
    await drain.set_aside([(found[0], "first")])
    await drain.confirm(1, Counts(dead_lettered=1), 0)
    await drain.set_aside([(found[1], "first")])
    await drain.set_aside([(found[3], "first")])
    again = await driven(adapter, 2)
    await again.set_aside([(record, "second") for record in found[1:]])
    assert await letters(adapter) == [
        (0, b"0", "first"),
        (1, b"1", "first"),
        (3, b"3", "first"),
        # Refused after the crash only, and not forgotten although a later one was there.
        (2, b"2", "second"),
    ]


@pytest.mark.few_cases(2, "waits for a lease for each engine")
async def test_many_dead_letters_ahead_of_the_cursor_are_found_again(adapter: StorageAdapter) -> None:
    count = 600
    await filled(adapter, *(b"%d" % number for number in range(count)))
    drain = await driven(adapter)
    for record in await waiting(drain):
        await drain.set_aside([(record, "no")])
    again = await driven(adapter, 2)
    for record in await waiting(again):
        await again.set_aside([(record, "no")])
    assert [offset for offset, _, _ in await letters(adapter)] == list(range(count))


async def test_a_former_driver_makes_no_dead_letters(adapter: StorageAdapter) -> None:
    """A record could be at the sink and a dead letter: a driver that had hung set aside what the next had brought."""
    await filled(adapter, b"0", b"1")
    first = await driven(adapter, 1)
    second = await driven(adapter, 2)
    found = await waiting(second)
    with pytest.raises(QueueLostError, match="changed by another process"):
        await first.set_aside([(found[0], "first driver")])
    for record in found:
        await second.set_aside([(record, "second driver")])
    assert await letters(adapter) == [(0, b"0", "second driver"), (1, b"1", "second driver")]


async def test_what_is_a_dead_letter_is_not_brought_to_the_sink_after_a_crash(adapter: StorageAdapter) -> None:
    """The next driver brought it once more; a sink that took it then had it, and `--replay` brought it twice."""
    await filled(adapter, b"0", b"1", b"2")
    drain = await driven(adapter)
    await drain.set_aside([((await waiting(drain))[1], "no")])
    again = await driven(adapter, 2)
    part = await again.read(0, max_bytes=1 << 20, max_wait_s=0)
    assert [record.value for record in part.records] == [b"0", b"2"]
    assert (part.next_offset, part.skipped) == (3, Counts(dead_lettered=1))
    await again.confirm(3, Counts(confirmed=2, dead_lettered=1), 0)
    assert again.counts == Counts(confirmed=2, dead_lettered=1)


async def test_many_refused_records_are_set_aside_in_few_commits(adapter: StorageAdapter) -> None:
    await filled(adapter, *(b"%d" % number for number in range(500)))
    path = StorePath(adapter)
    calls: list[str] = []
    path.fail(lambda name, _: calls.append(name) or False, carried_out=True)  # type: ignore[func-returns-value]
    drain = await driven(path)
    await drain.set_aside([(record, "no") for record in await waiting(drain)])
    assert calls.count("commit") <= 2
    assert len(await letters(adapter)) == 500


async def test_what_the_sink_has_is_counted_by_records(adapter: StorageAdapter) -> None:
    """The position of a sink was taken for a count, with offsets whose records had expired or were set aside."""
    await filled(adapter)
    late = msgspec.structs.replace(records(b"late")[0], expires_at_us=1)
    await adapter.append(names.shard_of(NAME), [late, *records(b"1", b"2", b"3", b"4")])
    drain = await driven(adapter)
    await drain.set_aside([((await waiting(drain))[1], "no")])
    assert await drain.counts_up_to(4) == Counts(confirmed=2, dead_lettered=1, expired=1)


async def test_an_answer_that_is_lost_adds_no_second_dead_letter(adapter: StorageAdapter) -> None:
    await filled(adapter, b"0")
    await adapter.create_shard(names.dead_letters_of(NAME))
    path = StorePath(adapter)
    drain = await driven(path, 1)
    record = (await waiting(drain))[0]
    path.fail(lambda name, _: name == "commit", carried_out=True)
    with pytest.raises(Exception, match="before the reply"):
        await drain.set_aside([(record, "no")])
    assert path.failed_count == 1
    await drain.set_aside([(record, "no")])
    assert await letters(adapter) == [(0, b"0", "no")]


async def test_the_dead_letters_of_a_queue_made_anew_are_others(adapter: StorageAdapter) -> None:
    """Offsets begin again at 0 then: none of the new ones is taken for one that is there."""
    await filled(adapter, b"0", b"1")
    drain = await driven(adapter)
    for record in await waiting(drain):
        await drain.set_aside([(record, "old")])
    await adapter.delete_shard(names.shard_of(NAME))
    await filled(adapter, b"new")
    drain = await driven(adapter, 2)
    await drain.set_aside([((await waiting(drain))[0], "new")])
    assert await letters(adapter) == [(0, b"0", "old"), (1, b"1", "old"), (0, b"new", "new")]


async def test_a_shard_of_dead_letters_that_was_deleted_is_made_again(adapter: StorageAdapter) -> None:
    await filled(adapter, b"0", b"1")
    drain = await driven(adapter)
    found = await waiting(drain)
    await drain.set_aside([(found[0], "no")])
    await adapter.delete_shard(names.dead_letters_of(NAME))
    await drain.set_aside([(found[1], "no")])
    assert await letters(adapter) == [(1, b"1", "no")]


async def test_a_queue_of_one_name_has_nothing_of_another(adapter: StorageAdapter) -> None:
    await filled(adapter, b"0")
    await adapter.create_shard(names.shard_of("other"), ShardConfig(), exist_ok=True)
    assert await letters(adapter) == []
    assert QueueSettings().shard_config.mode is Mode.FILE
