"""The engine of a follower, over a log store in memory that another engine of this process writes to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from journal.engine import Addresses, Claim, Decision, Engine, SharedLog, open_engine
from journal.engine.segments.file_fetching import FileFetcher
from journal.engine.shared_log.log import BehindLogError
from journal.engine.shared_log.slot_groups import SlotGroup
from journal.engine.wal.entry_payloads import ConvertedFile, FilesConverted
from journal.engine.write.transactions import Put
from journal.logstore import LogStore
from journal.logstore.ownership import Member
from journal.logstore.stores.memory import MemoryLogStore
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from journal.settings.values import MIB
from shards.errors import NotOwnerError, OffsetOutOfRangeError, ShardNotFoundError
from shards.format.batch import encode, read_records
from shards.format.record import Record, StoredRecord
from shards.model import Mode, ShardConfig
from shards.segments.shard import Shard
from shards.views.shared_files import SharedFileRecord
from tests.patience import PATIENCE_S

STORE_ID: Final = bytes(range(16))
CONFIG: Final = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=MIB,
        journal_budget_bytes=2 * MIB,
        segment_bytes=64 * 1024,
        tail_budget_bytes=MIB,
        disk_reserve_bytes=0,
    ),
    conversion=ConversionConfig(enabled=False),
)
FILE_MODE: Final = ShardConfig(mode=Mode.FILE)


class Watch:
    """Follows as long as the test wants it to."""

    def __init__(self, *, takes_over: bool = False) -> None:
        self.takes_over = takes_over
        self.looks = 0

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        self.looks += 1
        await trio.sleep(0.01)
        return Decision.TAKE_OVER if self.takes_over else Decision.LOOK


class Readers:
    """Keeps the engine that is read."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.begun = 0
        self.ended: list[Engine] = []

    def begin(self, engine: Engine) -> None:
        self.engine = engine
        self.begun += 1

    async def end(self) -> None:
        assert self.engine is not None
        assert isinstance(await self.engine.wait_failed(), NotOwnerError)
        # It can be read until this returns.
        self.engine.match_names("#", 1)
        self.ended.append(self.engine)
        self.engine = None

    async def wait(self) -> Engine:
        with trio.fail_after(PATIENCE_S):
            while self.engine is None:
                await trio.sleep(0.01)
        return self.engine


def log_of(store: LogStore, number: int, watch: Watch) -> SharedLog:
    member = Member("root", STORE_ID, bytes([number]) * 16)
    return SharedLog(store, member, Addresses(f"host-{number}:7420", ""), watch, MIB)


@attrs.frozen
class Pair:
    """An owner, and the engine of a follower."""

    owner: Engine
    readers: Readers
    watch: Watch
    owned: list[Engine]
    following: trio.CancelScope

    async def caught_up(self, shard: str, offset: int) -> Engine:
        """The engine of the follower, as soon as it shows that much of a shard."""
        with trio.fail_after(PATIENCE_S):
            while True:
                engine = await self.readers.wait()
                if engine.shard_id(shard) is not None and engine.describe_shard(shard).next_offset >= offset:
                    return engine
                await trio.sleep(0.01)


@asynccontextmanager
async def pair(
    tmp_path: Path, of_follower: Callable[[MemoryLogStore], LogStore] = lambda store: store
) -> AsyncIterator[Pair]:
    """Both use one store, the follower perhaps through another one."""
    store, readers, watch, owned = MemoryLogStore(), Readers(), Watch(), []
    following = trio.CancelScope()

    async def follow() -> None:
        with following:
            log = log_of(of_follower(store), 2, watch)
            async with open_engine(str(tmp_path / "b"), CONFIG, log=log, readers=readers) as engine:
                owned.append(engine)
                await trio.sleep_forever()

    first = log_of(store, 1, Watch(takes_over=True))
    async with open_engine(str(tmp_path / "a"), CONFIG, log=first) as owner, trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        yield Pair(owner, readers, watch, owned, following)
        nursery.cancel_scope.cancel()


async def append(engine: Engine, shard: str, *values: bytes) -> None:
    await engine.append(engine.shard(shard), encode([Record(value=value) for value in values], now_us=1))


async def values_in(engine: Engine, shard: str) -> list[bytes]:
    found = engine.shard(shard)
    values: list[bytes] = []
    offset = 0
    while offset < found.published_offset:
        part = await engine.read(found, offset, MIB)
        for record in read_records(b"".join(part.buffers), start_offset=offset):
            assert isinstance(record, StoredRecord)
            values.append(bytes(record.value or b""))
        offset = part.next_offset
    return values


async def test_a_follower_reads_what_its_owner_has_acknowledged(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0", b"1")
        engine = await both.caught_up("a", 2)
        assert engine.is_following
        assert engine.owner == "host-1:7420"
        assert await values_in(engine, "a") == [b"0", b"1"]
        assert engine.match_names("#", 10) == ["a"]
        assert engine.describe_shard("a") == both.owner.describe_shard("a")
        with pytest.raises(ShardNotFoundError):
            engine.shard("b")
        with pytest.raises(OffsetOutOfRangeError):
            await engine.read(engine.shard("a"), 3, MIB)


async def waited_until(both: Pair, change: Callable[[], Awaitable[None]]) -> tuple[Engine, Shard]:
    """The engine of the follower, and a shard of which a reader has waited for the second record during a change."""
    await both.owner.create_shard("a", FILE_MODE)
    await append(both.owner, "a", b"0")
    engine = await both.caught_up("a", 1)
    shard = engine.shard("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        with trio.fail_after(PATIENCE_S):
            await engine.wait_beyond(shard, 1, 2 * PATIENCE_S)
    return engine, shard


async def test_a_reader_that_waits_is_woken_by_the_next_group(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        engine, _ = await waited_until(both, partial(append, both.owner, "a", b"1"))
        assert await values_in(engine, "a") == [b"0", b"1"]


async def test_a_reader_that_waits_is_woken_by_the_deletion_of_the_shard(tmp_path: Path) -> None:
    """At a follower it waited to its end, a minute by default. The owner answers at once."""
    async with pair(tmp_path) as both:
        _, shard = await waited_until(both, partial(both.owner.delete_shard, "a"))
        with pytest.raises(ShardNotFoundError):
            shard.check_usable()


async def test_a_follower_shows_all_of_a_transaction_or_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        for name in "ab":
            await both.owner.create_shard(name, FILE_MODE)
        await append(both.owner, "a", b"0")
        engine = await both.caught_up("a", 1)
        first, second = engine.shard("a"), engine.shard("b")
        seen: list[tuple[int, int]] = []
        first.add_listener(lambda _: seen.append((first.published_offset, second.published_offset)))
        for number in range(1, 30):
            batch = encode([Record(value=b"%d" % number)], now_us=1)
            await both.owner.commit([("b", batch), ("a", batch)], [Put(b"key", b"value", None, 0)], [])
        await both.caught_up("a", 30)
        # Both are published before anything else runs; the first may be before the second within that step.
        assert second.published_offset == 29
        assert all(ends[1] in (ends[0] - 2, ends[0] - 1) for ends in seen)


async def test_a_follower_changes_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        engine = await both.caught_up("a", 0)
        batch = encode([Record(value=b"0")], now_us=1)
        with pytest.raises(NotOwnerError, match="host-1:7420"):
            await engine.append(engine.shard("a"), batch)
        with pytest.raises(NotOwnerError, match="host-1:7420"):
            await engine.commit([("a", batch)], [], [])
        with pytest.raises(NotOwnerError):
            await engine.create_shard("b", FILE_MODE)
        with pytest.raises(NotOwnerError):
            await engine.put_state(b"key", b"value", None, 0)
        with pytest.raises(NotOwnerError):
            engine.get_cursor("a", "cursor")
        appender = engine.begin_chunk()
        assert appender.append_run(memoryview(bytes(64)), 0, 64, [], both) == 0  # type: ignore[arg-type]
        appender.finish()
        assert both.owner.describe_shard("a").next_offset == 0


async def test_the_engine_of_a_follower_becomes_that_of_the_owner(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0", b"1")
        engine = await both.caught_up("a", 2)
        shard = engine.shard("a")
        ends: list[int] = [shard.published_offset]
        shard.add_listener(lambda changed: ends.append(changed.published_offset))
        both.watch.takes_over = True
        with trio.fail_after(PATIENCE_S):
            while not both.owned:
                await trio.sleep(0.01)
        assert both.owned == [engine]
        assert not engine.is_following
        assert engine.shard("a") is shard
        await append(engine, "a", b"2")
        assert await values_in(engine, "a") == [b"0", b"1", b"2"]
        assert ends == sorted(ends), "a reader saw history go back"
        assert not both.readers.ended
        shard.remove_listener(next(iter(shard.listeners or ())))


async def test_reads_have_ended_before_a_follower_closes_what_is_read(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        engine = await both.caught_up("a", 0)
        both.following.cancel()
        with trio.fail_after(PATIENCE_S):
            while not both.readers.ended:
                await trio.sleep(0.01)
        assert both.readers.ended == [engine]
        assert engine.is_following


async def test_reads_end_when_a_follower_opens_its_directory_again_and_begin_at_the_same_place(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"first")
        before = await both.caught_up("a", 1)
        for number in range(16):
            await append(both.owner, "a", bytes(100_000), b"%d" % number)
        after = await both.caught_up("a", 33)
        assert after is not before
        assert before in both.readers.ended
        assert (await values_in(after, "a"))[::2] == [b"first", *(b"%d" % number for number in range(16))]


async def test_nothing_is_read_while_a_file_that_the_log_names_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log store no longer, because an entry that the follower has not read yet has replaced it."""
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0")
        engine = await both.caught_up("a", 1)
        asked: list[SharedFileRecord] = []

        async def fetch_ahead(fetcher: FileFetcher, records: Iterable[SharedFileRecord]) -> bool:
            found = list(records)
            asked.extend(found)
            return not found

        monkeypatch.setattr(FileFetcher, "fetch_ahead", fetch_ahead)
        file = ConvertedFile(day=20000, file_id=7, size_bytes=100, record_count=1, digest=bytes(32))
        await both.owner.parts.commands.record_files_converted(FilesConverted((file,), ()))
        with trio.fail_after(PATIENCE_S):
            while not both.readers.ended:
                await trio.sleep(0.01)
        assert both.readers.ended == [engine]
        assert [record.file_id for record in asked] == [7]


async def test_reads_end_before_a_follower_that_is_behind_the_log_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as both:
        await both.owner.create_shard("a", FILE_MODE)
        await append(both.owner, "a", b"0", b"1")
        before = await both.caught_up("a", 2)
        read = SharedLog.read
        is_behind = True

        async def read_once_behind(log: SharedLog, next_lsn: int) -> list[SlotGroup] | None:
            nonlocal is_behind
            if is_behind:
                is_behind = False
                raise BehindLogError("its slots were removed")
            return await read(log, next_lsn)

        monkeypatch.setattr(SharedLog, "read", read_once_behind)
        with trio.fail_after(PATIENCE_S):
            while not both.readers.ended:
                await trio.sleep(0.01)
        after = await both.caught_up("a", 2)
        assert after is not before
        assert both.readers.ended == [before]
        assert await values_in(after, "a") == [b"0", b"1"]
