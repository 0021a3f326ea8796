"""What background work may and may not take away."""

from __future__ import annotations

from pathlib import Path

import attrs
import trio

from journal.engine import Engine, open_engine
from journal.settings.server import ServerConfig, ShardsConfig, StorageConfig
from shards.format.batch import encode, encode_values, read_records
from shards.format.record import Gap, Record, StoredRecord
from shards.model import Mode, Retention, SegmentKind, ShardConfig
from shards.seams.store import Family
from shards.segments.shard import Shard
from tests.journal.engines import apply_retention
from tests.patience import PATIENCE_S

MIB = 1 << 20
CONFIG = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=4 * MIB,
        journal_budget_bytes=16 * MIB,
        memory_segment_bytes=64 * 1024,
        disk_reserve_bytes=0,
        retention_interval_s=3600,
    ),
    shards=ShardsConfig(memory_max_bytes=256 * 1024),
)
VALUE = bytes(1000)


async def fill(engine: Engine, shard: Shard, records: int) -> None:
    for _ in range(records // 10):
        await engine.append(shard, encode_values([VALUE] * 10, timestamp_us=1))


async def read_all(engine: Engine, shard: Shard) -> list[StoredRecord | Gap]:
    found: list[StoredRecord | Gap] = []
    offset = shard.start_offset
    while offset < shard.published_offset:
        extent = await engine.parts.reader.read(shard, offset, MIB)
        found += read_records(b"".join(extent.buffers), start_offset=offset)
        offset = extent.next_offset
    return found


def memory_bytes(shard: Shard) -> int:
    return sum(segment.size_bytes for segment in shard.segments if segment.kind is SegmentKind.MEMORY)


async def test_memory_mode_is_bounded_without_dropping_what_is_in_files(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        await engine.create_shard("s", ShardConfig())
        shard = engine.parts.table.by_name("s")
        await fill(engine, shard, 1000)
        await engine.set_mode("s", Mode.MEMORY)
        await fill(engine, shard, 1000)
        assert memory_bytes(shard) <= 256 * 1024 + 2 * 64 * 1024
        assert shard.start_offset == 0
        found = await read_all(engine, shard)
        assert [record.offset for record in found[:1000] if isinstance(record, StoredRecord)] == list(range(1000))
        gap = found[1000]
        assert isinstance(gap, Gap)
        assert gap.first_offset == 1000
        assert [record.offset for record in found[1001:] if isinstance(record, StoredRecord)] == list(
            range(gap.next_offset, 2000)
        )


async def test_a_shard_that_was_always_in_memory_is_trimmed_to_its_bound(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        await engine.create_shard("s", ShardConfig(mode=Mode.MEMORY))
        shard = engine.parts.table.by_name("s")
        await fill(engine, shard, 2000)
        await engine.parts.committer.drain()
        assert memory_bytes(shard) <= 256 * 1024 + 2 * 64 * 1024
        assert shard.start_offset == shard.segments[0].base_offset > 0
        assert all(isinstance(record, StoredRecord) for record in await read_all(engine, shard))


async def test_a_retention_of_its_own_counts_for_files_and_memory_alike(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        config = ShardConfig(retention=Retention(max_records=500), segment_bytes=64 * 1024)
        await engine.create_shard("s", config)
        shard = engine.parts.table.by_name("s")
        await fill(engine, shard, 1000)
        await apply_retention(engine)
        await engine.parts.committer.drain()
        assert 400 <= shard.published_offset - shard.start_offset <= 600


async def test_the_index_forgets_trimmed_records(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        await engine.create_shard("s", ShardConfig(index_keys=True))
        shard = engine.parts.table.by_name("s")
        for number in range(10):
            await engine.append(shard, encode([Record(key=b"k%d" % (number % 3))], now_us=1))
        await engine.trim("s", 6)
        entries: list[bytes] = []
        with trio.fail_after(PATIENCE_S):
            while len(entries := [key for key, _ in engine.parts.views.store.scan(Family.KEY_INDEX)]) != 4:
                engine.parts.checkpointer.wake()
                await trio.lowlevel.checkpoint()
        assert len(entries) == 4


async def test_the_newest_record_of_a_key_is_the_newest_that_is_left(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    async with open_engine(path, CONFIG) as engine:
        await engine.create_shard("s", ShardConfig(index_keys=True))
        shard = engine.parts.table.by_name("s")
        await engine.append(shard, encode([Record(key=b"k", value=b"in a file")], now_us=1))
        await engine.set_mode("s", Mode.MEMORY)
        await engine.append(shard, encode([Record(key=b"k", value=b"in memory")], now_us=1))
    async with open_engine(path, attrs.evolve(CONFIG)) as engine:
        shard = engine.parts.table.by_name("s")
        extent = await engine.parts.reader.read_indexed(shard, "key", b"k", 0, MIB, latest=True)
        found = read_records(b"".join(extent.buffers))
        assert [record.value for record in found if isinstance(record, StoredRecord)] == [b"in a file"]


async def test_a_journal_file_of_larger_settings_lets_appends_in(tmp_path: Path) -> None:
    """Guards against a server that is started with a smaller budget than it was and waits for ever for room."""
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        await engine.create_shard("s", ShardConfig())
        await fill(engine, engine.parts.table.by_name("s"), 10)
    smaller = attrs.evolve(CONFIG.storage, journal_file_bytes=MIB, journal_budget_bytes=2 * MIB)
    async with open_engine(str(tmp_path / "data"), attrs.evolve(CONFIG, storage=smaller)) as engine:
        shard = engine.parts.table.by_name("s")
        with trio.fail_after(PATIENCE_S):
            await fill(engine, shard, 8000)
        assert len(await read_all(engine, shard)) == 8010
