"""The key-value engine keeps what it acknowledged when the machine loses everything that was not flushed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.engines.key_value import KeyValueAdapter
from broker_adapter.engines.local import open_store
from shards.errors import ShardNotFoundError, StorageFailedError
from shards.format.record import Gap, StoredRecord
from shards.model import AckLevel, Mode, Retention, ShardConfig
from shards.seams.clock import ManualClock
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from tests.adapter_contract.reading import offsets_of, read_all, values_of


class ForgetfulStore(MemoryStore):
    """Remembers every write, so that a crash can lose those after the last flush."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Mutations] = []
        self.flushed_count = 0
        self.flush_count = 0
        self.before_flush: Callable[[], object] = lambda: None

    def write(self, mutations: Mutations) -> None:
        super().write(mutations)
        self.writes.append(mutations)

    def flush(self) -> None:
        count = len(self.writes)
        self.flush_count += 1
        self.before_flush()
        self.flushed_count = count

    def after_crash(self, survived_share: float) -> ForgetfulStore:
        """The store as it is found after a crash: everything flushed, and some of what was written later."""
        unflushed = len(self.writes) - self.flushed_count
        found = ForgetfulStore()
        for mutations in self.writes[: self.flushed_count + round(unflushed * survived_share)]:
            found.write(mutations)
        found.flush()
        return found


steps = st.one_of(
    st.tuples(st.just("append"), st.sampled_from("ab"), st.sampled_from([AckLevel.DEFAULT, AckLevel.MEMORY])),
    st.tuples(st.just("mode"), st.sampled_from("ab"), st.sampled_from(list(Mode))),
    st.tuples(st.just("trim"), st.sampled_from("ab"), st.integers(0, 6)),
    st.tuples(st.just("put"), st.sampled_from("ab"), st.integers(0, 99)),
    st.tuples(st.just("crash"), st.just("a"), st.floats(0, 1)),
)


class Acknowledged:
    """What the engine promised, to be checked after each crash."""

    def __init__(self) -> None:
        self.durable: dict[tuple[str, int], bytes] = {}
        self.given_out: dict[str, int] = {"a": 0, "b": 0}
        self.start: dict[str, int] = {"a": 0, "b": 0}
        self.state: dict[bytes, bytes] = {}
        self.highest_lsn = 0

    async def check(self, adapter: KeyValueAdapter) -> None:
        for name in "ab":
            info = await adapter.describe_shard(name)
            found = await read_all(adapter, name, info.start_offset)
            assert info.next_offset >= self.given_out[name], "an offset would be given out again"
            assert info.start_offset >= self.start[name], "trimmed records came back"
            next_offset = info.start_offset
            for record in found:
                first = record.first_offset if isinstance(record, Gap) else record.offset
                assert first == next_offset, "the offsets have a hole that no gap shows"
                next_offset = record.next_offset if isinstance(record, Gap) else record.offset + 1
            assert next_offset == info.next_offset
            values = {record.offset: record.value for record in found if isinstance(record, StoredRecord)}
            assert info.record_count == len(values), "offsets without records are counted"
            assert sum(each.next_offset - each.base_offset for each in info.segments) == len(values)
            assert sum(each.size_bytes for each in info.segments) == info.size_bytes
            for (shard, offset), value in self.durable.items():
                if shard == name and offset >= info.start_offset:
                    assert values.get(offset) == value, "a durable record is lost"
        for key, value in self.state.items():
            stored = await adapter.get_state(key)
            assert stored is not None
            assert stored.value == value

    async def run(self, adapter: KeyValueAdapter, kind: str, name: str, argument: Any) -> None:
        if kind == "append":
            values = [b"%d" % len(self.durable), b"x"]
            appended = await adapter.append(name, values, ack=argument)
            self.given_out[name] = appended.base_offset + 2
            if appended.level is AckLevel.DURABLE:
                self.durable.update({(name, at): value for at, value in enumerate(values, appended.base_offset)})
        elif kind == "mode":
            await adapter.set_mode(name, argument)
        elif kind == "trim":
            info = await adapter.describe_shard(name)
            self.start[name] = min(info.next_offset, info.start_offset + argument)
            await adapter.trim(name, self.start[name])
        else:
            put = await adapter.put_state(name.encode(), b"%d" % argument)
            assert put.version > self.highest_lsn, "an lsn was given out again"
            self.highest_lsn = put.version
            self.state[name.encode()] = put.value


@given(st.lists(steps, max_size=25))
@settings(max_examples=40, deadline=None)
async def test_nothing_durable_is_lost_and_no_offset_is_given_out_twice(
    plan: list[tuple[str, str, Any]],
) -> None:
    store = ForgetfulStore()
    acknowledged = Acknowledged()
    remaining = [*plan, ("crash", "a", 0.0)]
    async with open_store(store, durable=True) as adapter:
        await adapter.create_shard("a", ShardConfig(mode=Mode.MEMORY))
        await adapter.create_shard("b")
        crashed = store.after_crash(0.5)
    while remaining:
        async with open_store(crashed, durable=True) as adapter:
            store = crashed
            await acknowledged.check(adapter)
            while remaining:
                kind, name, argument = remaining.pop(0)
                if kind == "crash":
                    crashed = store.after_crash(argument)
                    break
                await acknowledged.run(adapter, kind, name, argument)
    async with open_store(crashed, durable=True) as adapter:
        await acknowledged.check(adapter)


async def test_a_record_is_readable_only_when_it_is_durable() -> None:
    store = ForgetfulStore()
    async with open_store(store, durable=True) as adapter:
        await adapter.create_shard("s")
        may_flush = threading.Event()
        store.before_flush = lambda: may_flush.wait(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(adapter.append, "s", [b"v"])
            nursery.start_soon(adapter.put_state, b"k", b"v")
            await trio.testing.wait_all_tasks_blocked()
            assert (await adapter.read("s", 0)).records == []
            assert (await adapter.describe_shard("s")).next_offset == 0
            may_flush.set()
        assert values_of((await adapter.read("s", 0)).records) == [b"v"]


async def test_concurrent_appends_share_flushes() -> None:
    store = ForgetfulStore()
    async with open_store(store, durable=True) as adapter:
        await adapter.create_shard("s")
        before = store.flush_count
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(adapter.append, "s", [b"v"])
        assert store.flush_count - before <= 5
        assert len(await read_all(adapter, "s")) == 100


async def test_after_a_failed_flush_nothing_is_acknowledged_and_reads_go_on() -> None:
    store = ForgetfulStore()

    def fail() -> None:
        raise StorageFailedError("the disk is gone")

    async with open_store(store, durable=True) as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"kept"])
        store.before_flush = fail
        for _ in range(2):
            with pytest.raises(StorageFailedError, match="disk is gone"):
                await adapter.append("s", [b"doubtful"])
        with pytest.raises(StorageFailedError):
            await adapter.put_state(b"k", b"v")
        assert values_of((await adapter.read("s", 0)).records) == [b"kept"]


async def test_a_failed_write_is_final_too() -> None:
    store = ForgetfulStore()

    def fail(mutations: Mutations) -> None:
        raise StorageFailedError("the disk is gone")

    async with open_store(store, durable=True) as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"kept"])
        healthy, store.write = store.write, fail  # type: ignore[method-assign]
        with pytest.raises(StorageFailedError, match="disk is gone"):
            await adapter.append("s", [b"lost"])
        store.write = healthy  # type: ignore[method-assign]
        with pytest.raises(StorageFailedError, match="disk is gone"):
            await adapter.append("s", [b"would leave a hole"])
        assert values_of((await adapter.read("s", 0)).records) == [b"kept"]


async def test_a_deleted_shards_records_are_swept_out_even_after_a_crash() -> None:
    store = ForgetfulStore()
    async with open_store(store, durable=True) as adapter:
        await adapter.create_shard("s", ShardConfig(index_keys=True))
        for _ in range(10):
            await adapter.append("s", [b"v"])
        await adapter.delete_shard("s")
        first_write_of_delete = next(
            at
            for at, mutations in enumerate(store.writes)
            if any(key.startswith(b"garbage/") for _, key, _ in mutations)
        )
        store.flushed_count = first_write_of_delete + 1
        crashed = store.after_crash(0)
    async with open_store(crashed, durable=True) as adapter:
        await trio.testing.wait_all_tasks_blocked()
        assert list(crashed.scan(Family.SEGMENTS)) == []
        assert await adapter.list_shards() == []


async def test_old_records_and_expired_state_go_by_themselves(autojump_clock: trio.testing.MockClock) -> None:
    clock = ManualClock()
    store = MemoryStore()
    async with open_store(store, durable=False, clock=clock) as adapter:
        await adapter.create_shard("s", ShardConfig(retention=Retention(max_age_s=60)))
        await adapter.append("s", [b"old"])
        await adapter.put_state(b"k", b"v", expires_at_us=clock.now_us() + 1)
        clock.advance(seconds=59)
        await adapter.append("s", [b"new"])
        clock.advance(seconds=2)
        await trio.sleep(2)
        info = await adapter.describe_shard("s")
        assert (info.start_offset, info.next_offset) == (1, 2)
        assert list(store.scan(Family.STATE)) == []


async def test_retention_by_count_and_size_keeps_the_newest_batches() -> None:
    async with open_store(MemoryStore(), durable=False) as adapter:
        await adapter.create_shard("count", ShardConfig(retention=Retention(max_records=10)))
        await adapter.create_shard("size", ShardConfig(retention=Retention(max_bytes=5_000)))
        for number in range(20):
            for name in ("count", "size"):
                await adapter.append(name, [b"%04d" % number * 250] * 3)
        info = await adapter.describe_shard("count")
        assert offsets_of(await read_all(adapter, "count", info.start_offset)) == list(range(51, 60))
        info = await adapter.describe_shard("size")
        assert (info.start_offset, info.size_bytes <= 5_000) == (57, True)


async def test_errors_in_the_block_come_out_as_they_are() -> None:
    with pytest.raises(ShardNotFoundError):
        async with open_store(MemoryStore(), durable=False) as adapter:
            await adapter.read("nope", 0)
