"""Groups that the disk writes by itself are where the journal would have put them, and are durable after the sync."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from journal.engine import Engine, Environment, open_engine
from journal.engine.wal.disk import DirectOutcome, DirectWrite, DiskThread
from journal.engine.wal.journal_file import UsedFile
from journal.engine.wal.journal_writer import JournalWriter
from shards import compiled
from shards.errors import StorageFailedError
from shards.model import ShardConfig
from shards.seams.os_file_system import OsFileSystem
from tests.journal.engines import append, append_at_once, config, values_of
from tests.journal.journals import FILE_BYTES, SALT, cursor_entry

WRITTEN = DirectOutcome(is_written=True, error_number=0, sync_s=0.001)

needs_direct_writes = pytest.mark.skipif(
    compiled.direct_writer_type is None, reason=f"loops are {compiled.DESCRIPTION}"
)


@contextmanager
def journal_in(directory: Path) -> Iterator[JournalWriter]:
    directory.mkdir()
    used: list[UsedFile] = []
    writer = JournalWriter(OsFileSystem(), str(directory), FILE_BYTES, lambda: SALT, used)
    writer.begin(1)
    try:
        yield writer
    finally:
        writer.close()


def write_directly(writer: JournalWriter, entry: bytes, lsn: int) -> bool:
    """Do what a disk does, without a thread; false if there is no place for the group."""
    write = writer.place([entry], len(entry), lsn, lsn + 1)
    if write is None:
        return False
    assert os.pwritev(write.descriptor, write.buffers, write.position) == sum(map(len, write.buffers))
    writer.placed(write, WRITTEN)
    return True


def test_groups_written_in_either_way_make_the_same_files(tmp_path: Path) -> None:
    """And a group that does not fit into the file is left to the journal, which continues in the next one."""
    entries = [cursor_entry(lsn, 1, "n" * 3000) for lsn in range(1, 12)]
    with journal_in(tmp_path / "through") as writer:
        for lsn, entry in enumerate(entries, 1):
            writer.write_group([entry], len(entry), lsn, lsn + 1)
    with journal_in(tmp_path / "past") as writer:
        left = 0
        for lsn, entry in enumerate(entries, 1):
            if not write_directly(writer, entry, lsn):
                writer.write_group([entry], len(entry), lsn, lsn + 1)
                left += 1
    names = sorted(path.name for path in (tmp_path / "through").iterdir())
    assert left == len(names) - 1 > 1
    assert sorted(path.name for path in (tmp_path / "past").iterdir()) == names
    for name in names:
        assert (tmp_path / "past" / name).read_bytes() == (tmp_path / "through" / name).read_bytes()


def test_there_is_no_place_while_a_copy_is_not_synced(tmp_path: Path) -> None:
    """A torn group before a durable one would be damage, not the end of the journal."""
    with journal_in(tmp_path / "journal") as writer:
        entry = cursor_entry(1, 1)
        writer.write_copy([entry], len(entry), 1, 2)
        assert not write_directly(writer, cursor_entry(2, 1), 2)
        writer.write_mark()
        assert write_directly(writer, cursor_entry(2, 1), 2)


def test_after_a_failed_sync_nothing_more_is_written(tmp_path: Path) -> None:
    with journal_in(tmp_path / "journal") as writer:
        entry = cursor_entry(1, 1)
        write = writer.place([entry], len(entry), 1, 2)
        assert write is not None
        with pytest.raises(OSError, match=r"fdatasync: Input/output error: .*journal-0000000000000001.jnl") as raised:
            writer.placed(write, DirectOutcome(is_written=True, error_number=errno.EIO, sync_s=0))
        assert raised.value.errno == errno.EIO
        assert writer.place([entry], len(entry), 1, 2) is None
        with pytest.raises(OSError, match="fdatasync: Input/output error"):
            writer.write_group([entry], len(entry), 1, 2)


@asynccontextmanager
async def engine_in(directory: Path) -> AsyncIterator[Engine]:
    directory.mkdir(exist_ok=True)
    async with open_engine(str(directory), config(), Environment()) as engine:
        yield engine


@needs_direct_writes
async def test_an_engine_writes_by_both_ways_and_everything_is_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journal files end, checkpoints come in between, and every tenth direct write is reported as not written."""
    directly, through = count_groups(monkeypatch, fails=lambda number: number % 10 == 9)
    async with engine_in(tmp_path / "data") as engine:
        await engine.create_shard("s", ShardConfig())
        for round_number in range(12):
            await append_at_once(engine, "s", 20)
            await append(engine, "s", b"x" * 10_000)
            if round_number % 5 == 4:
                await engine.parts.checkpointer.checkpoint()
        expected = await values_of(engine, "s")
        assert len(expected) == 12 * 21
        assert engine.parts.writer.newest_number > 2
    assert len(directly) > 20
    assert len(through) > 2
    async with engine_in(tmp_path / "data") as engine:
        assert await values_of(engine, "s") == expected


@needs_direct_writes
async def test_only_small_groups_are_written_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With large ones, too, commits end sooner, the next groups are smaller, and more of them cost more time."""
    directly, through = count_groups(monkeypatch, fails=lambda _: False)
    async with engine_in(tmp_path / "data") as engine:
        await engine.create_shard("s", ShardConfig())
        directly.clear()
        through.clear()
        for size_bytes in (100, 3000, 5000, 100):
            await append(engine, "s", b"x" * size_bytes)
    assert [write.size_bytes < 4096 for write in directly] == [True] * 3
    assert len(through) == 1


@needs_direct_writes
async def test_a_failed_sync_of_a_direct_write_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_in(tmp_path / "data") as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"before")
        fail_syncs(monkeypatch)
        for _ in range(2):
            with pytest.raises(StorageFailedError, match="fdatasync: Input/output error"):
                await append(engine, "s", b"lost")
        assert engine.parts.table.by_name("s").published_offset == 1


def count_groups(monkeypatch: pytest.MonkeyPatch, fails: object) -> tuple[list[DirectWrite], list[int]]:
    directly: list[DirectWrite] = []
    through: list[int] = []
    write, write_group = DiskThread.write, JournalWriter.write_group

    def counted(self: DiskThread, group: DirectWrite, done: object) -> bool:
        directly.append(group)
        number = len(directly)

        def report(result: DirectOutcome) -> None:
            assert callable(done)
            assert callable(fails)
            done(DirectOutcome(is_written=False, error_number=errno.ENOSPC, sync_s=0) if fails(number) else result)

        return write(self, group, report)

    def counted_group(
        self: JournalWriter, entries: list[bytes], size_bytes: int, first_lsn: int, next_lsn: int
    ) -> None:
        through.append(first_lsn)
        write_group(self, entries, size_bytes, first_lsn, next_lsn)

    monkeypatch.setattr(DiskThread, "write", counted)
    monkeypatch.setattr(JournalWriter, "write_group", counted_group)
    return directly, through


def fail_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    write = DiskThread.write

    def failing(self: DiskThread, group: DirectWrite, done: object) -> bool:
        assert callable(done)
        return write(self, group, lambda _: done(DirectOutcome(is_written=True, error_number=errno.EIO, sync_s=0)))

    monkeypatch.setattr(DiskThread, "write", failing)
