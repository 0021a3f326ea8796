"""Engines on a simulated disk, for tests of what is left behind when they stop."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import trio

from journal.engine import Engine, Environment, open_engine
from journal.engine.wal.group import AckSink
from journal.protocol.frames import APPEND_HEAD
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import StorageFailedError
from shards.format.batch import encode_values, read_records
from shards.format.record import Gap
from shards.seams.file_system import FileSystem
from shards.segments.shard import Shard
from tests.shards.batches import NOW_US
from tests.simulation.inline import InlineDisk
from tests.simulation.store import SimulatedStore

DATA = "/data"


def config(*, journal_file_bytes: int = 64 * 1024) -> ServerConfig:
    return ServerConfig(
        storage=StorageConfig(
            journal_file_bytes=journal_file_bytes, journal_budget_bytes=4 * journal_file_bytes, disk_reserve_bytes=0
        )
    )


def open_simulated(files: FileSystem, settings: ServerConfig | None = None) -> AbstractAsyncContextManager[Engine]:
    return open_engine(
        DATA,
        settings or config(),
        Environment(
            files=files,
            make_disk=InlineDisk,
            open_store=lambda path: SimulatedStore(files, path),
        ),
    )


def stop_without_checkpoint(engine: Engine) -> None:
    """Have the engine write nothing more, not when it is closed either: what is on the disk is what a crash leaves."""
    engine.parts.committer.failure = StorageFailedError("the power is gone")


async def apply_retention(engine: Engine) -> None:
    """Trim records beyond their retention, and remove expired state, as the tasks of an engine do from time to time."""
    await engine.parts.checkpointer.retention.apply()
    await engine.parts.commands.expire_state()


async def append(engine: Engine, shard: str, *values: bytes) -> None:
    """Append one batch and wait until it is acknowledged."""
    await engine.append(engine.parts.table.by_name(shard), encode_values(values, timestamp_us=NOW_US))


async def append_at_once(engine: Engine, shard: str, count: int) -> None:
    """Append batches from many tasks, so that commit groups overlap."""
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(append, engine, shard, b"%d" % number)


async def values_of(engine: Engine, shard_name: str) -> list[bytes]:
    """All values that a reader sees."""
    shard = engine.parts.table.by_name(shard_name)
    found: list[bytes] = []
    offset = shard.start_offset
    while offset < shard.published_offset:
        extent = await engine.parts.reader.read(shard, offset, 1 << 20)
        records = read_records(b"".join(map(bytes, extent.buffers)), start_offset=offset)
        found += [record.value for record in records if not isinstance(record, Gap)]
        offset = extent.next_offset
    return found


def append_frames(engine: Engine, frames: bytes, shard: Shard, sink: AckSink) -> None:
    """Bring APPEND frames as a connection does that received them together."""
    view = memoryview(bytearray(frames))
    appender = engine.begin_chunk()
    try:
        start, end = 0, len(view)
        while start < end:
            taken = appender.append_run(view, start, end, (shard,), sink)
            if taken == start:
                taken = start + APPEND_HEAD.unpack_from(view, start)[0]
                appender.append(view, start, taken, (shard,), sink)
            start = taken
    finally:
        appender.finish()
