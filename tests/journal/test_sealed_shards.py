"""Sealed segments are read as others are: by key and tag, in subscriptions, groups, long polls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trio.testing

from journal.check import check_directory
from journal.engine import Engine, SubscriptionTarget, open_engine
from journal.engine.subscribe.subscription import Subscription
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from shards.format.batch import encode, read_records
from shards.format.record import Record
from shards.model import SegmentKind, ShardConfig
from shards.position import Start
from shards.seams.os_file_system import OsFileSystem
from shards.subscriptions.events import Push
from tests.patience import PATIENCE_S
from tests.shards.batches import NOW_US
from tests.simulation.inline import InlineConverter

MIB = 1 << 20
CONFIG = ServerConfig(
    storage=StorageConfig(journal_file_bytes=4 * MIB, journal_budget_bytes=16 * MIB, disk_reserve_bytes=0),
    conversion=ConversionConfig(max_age_s=86_400),
)


def make_converter() -> InlineConverter:
    return InlineConverter(OsFileSystem())


@asynccontextmanager
async def shard_with_closed_segments(directory: Path) -> AsyncIterator[Engine]:
    """Three closed log segments of four batches each; they are converted on request."""
    async with open_engine(str(directory / "data"), CONFIG, make_converter=make_converter) as engine:
        await engine.create_shard("s", ShardConfig(index_keys=True, index_tags=True))
        shard = engine.parts.table.by_name("s")
        for number in range(12):
            records = [
                Record(b"%d.%d" % (number, each), key=b"key%d" % (number % 3), tags=(f"tag{each}",))
                for each in range(3)
            ]
            await engine.append(shard, encode(records, now_us=NOW_US + number))
            if number % 4 == 3:
                await engine.roll("s")
        await engine.parts.checkpointer.flush()
        yield engine


async def convert_everything(engine: Engine) -> None:
    shard = engine.parts.table.by_name("s")
    with trio.fail_after(PATIENCE_S):
        for up_to in (12, 24, 36):
            await engine.parts.conversion.wait_until_sealed(shard, up_to)
    assert [segment.kind for segment in shard.segments if segment.next_offset > segment.base_offset] == [
        SegmentKind.PARQUET
    ] * 3


async def by_word(engine: Engine) -> list[object]:
    shard = engine.parts.table.by_name("s")
    found: list[object] = []
    for by, word in (("key", b"key1"), ("key", b"key9"), ("tag", b"tag2")):
        for first in (0, 13, 36):
            for latest in (False, True):
                extent = await engine.parts.reader.read_indexed(shard, by, word, first, MIB, latest=latest)
                data = b"".join(map(bytes, extent.buffers))
                found.append((by, word, first, latest, extent.next_offset, read_records(data)))
    return found


async def test_reads_by_key_and_tag_find_the_same_records(tmp_path: Path) -> None:
    async with shard_with_closed_segments(tmp_path) as engine:
        before = await by_word(engine)
        await convert_everything(engine)
        assert await by_word(engine) == before


async def subscribe(engine: Engine, group: str | None = None) -> Subscription:
    return await engine.parts.subscriptions.subscribe(
        SubscriptionTarget(shard="s", group=group),
        start=Start.earliest(),
        on_ready=lambda: None,
        credit_bytes=lambda: MIB,
    )


async def take(subscription: Subscription, count: int) -> list[bytes]:
    """The values of the next pushes, up to so many records."""
    found: list[bytes] = []
    with trio.fail_after(PATIENCE_S):
        while len(found) < count:
            item = await subscription.take(400)
            if isinstance(item, Push):
                data = b"".join(map(bytes, item.buffers))
                found += [record.value for record in read_records(data, start_offset=item.first_offset)]
            elif item is None:
                await trio.testing.wait_all_tasks_blocked()
    return found


EXPECTED = [b"%d.%d" % (number, each) for number in range(12) for each in range(3)]


async def test_a_subscription_continues_when_its_segment_is_sealed(tmp_path: Path) -> None:
    async with shard_with_closed_segments(tmp_path) as engine:
        subscription = await subscribe(engine)
        found = await take(subscription, 5)
        await convert_everything(engine)
        found += await take(subscription, len(EXPECTED) - len(found))
        assert found == EXPECTED
        subscription.close()
        late = await subscribe(engine)
        assert await take(late, len(EXPECTED)) == EXPECTED
        late.close()


async def test_a_group_is_given_sealed_records_too(tmp_path: Path) -> None:
    async with shard_with_closed_segments(tmp_path) as engine:
        await convert_everything(engine)
        members = [await subscribe(engine, "g") for _ in range(2)]
        found: list[bytes] = []
        with trio.fail_after(PATIENCE_S):
            while len(found) < len(EXPECTED):
                for member in members:
                    item = await member.take(MIB)
                    if isinstance(item, Push):
                        data = b"".join(map(bytes, item.buffers))
                        found += [each.value for each in read_records(data, start_offset=item.first_offset)]
                        member.acknowledge(item.reference, item.first_offset, item.next_offset)
                await trio.testing.wait_all_tasks_blocked(0.001)
        assert sorted(found) == sorted(EXPECTED)
        for member in members:
            member.close()


async def test_a_reader_at_the_end_of_a_sealed_shard_gets_the_next_record(tmp_path: Path) -> None:
    async with shard_with_closed_segments(tmp_path) as engine:
        await convert_everything(engine)
        shard = engine.parts.table.by_name("s")
        async with trio.open_nursery() as nursery:
            with trio.fail_after(PATIENCE_S):
                nursery.start_soon(engine.append, shard, encode([Record(b"new")], now_us=NOW_US))
                await engine.parts.reader.wait_beyond(shard, len(EXPECTED), 20)
        extent = await engine.parts.reader.read(shard, len(EXPECTED), MIB)
        assert [each.value for each in read_records(b"".join(map(bytes, extent.buffers)))] == [b"new"]


async def test_a_sealed_shard_reads_the_same_after_a_restart(tmp_path: Path) -> None:
    async with shard_with_closed_segments(tmp_path) as engine:
        before = await by_word(engine)
        await convert_everything(engine)
    async with open_engine(str(tmp_path / "data"), CONFIG, make_converter=make_converter) as engine:
        assert await by_word(engine) == before
        subscription = await subscribe(engine)
        assert await take(subscription, len(EXPECTED)) == EXPECTED
        subscription.close()


async def test_a_check_finds_a_directory_with_sealed_and_trimmed_segments_sound(tmp_path: Path) -> None:
    async with shard_with_closed_segments(tmp_path) as engine:
        await convert_everything(engine)
        await engine.trim("s", 16)
    report = check_directory(str(tmp_path / "data"))
    assert (report.damages, report.notes) == ([], [])
    assert report.counts.sealed_segments == 2
