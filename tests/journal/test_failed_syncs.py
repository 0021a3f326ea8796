"""A sync that failed is final, for whatever reason; a write that found no space is not.

Earlier writes of the same file are in memory no more when a later one is synced. If that sync fails their pages may be
lost, and a sync after it succeeds without writing them.
"""

from __future__ import annotations

import errno
import os

import attrs
import pytest
import trio

from journal.engine import Engine
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import StorageFailedError
from shards.model import ShardConfig
from tests.journal.engines import append, open_simulated, values_of
from tests.patience import PATIENCE_S
from tests.simulation.faults import Fault, Trigger
from tests.simulation.file_system import (
    SimulatedDirectory,
    SimulatedFile,
    SimulatedFileSystem,
    everything_lost,
)

MIB = 1 << 20
# Nothing happens in the background unless a test asks for it.
CONFIG = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=16 * MIB,
        journal_budget_bytes=64 * MIB,
        tail_budget_bytes=64 * MIB,
        disk_reserve_bytes=0,
        flush_interval_ms=60_000,
        retention_interval_s=86_400,
    )
)
NUMBERS = [errno.ENOSPC, errno.EDQUOT, errno.EIO]
NAMES = [errno.errorcode[number] for number in NUMBERS]


class FailingFiles(SimulatedFileSystem):
    """Lets operations fail one at a time."""

    def fail_next(self, pattern: str, number: int) -> None:
        """Let the next operation fail whose name has this in it; see `Trigger`."""
        self.failed = False
        self.inject(Fault(Trigger(1, pattern), number, keep_entries=False))


async def appended(engine: Engine, shard: str, *values: bytes) -> None:
    for value in values:
        await append(engine, shard, value)


def large(number: int) -> bytes:
    return b"%d" % number * (300 * 1024)


@pytest.mark.parametrize("number", NUMBERS, ids=NAMES)
async def test_a_log_file_whose_sync_finds_no_space_is_not_synced_again_as_if_nothing_was_lost(number: int) -> None:
    """Acknowledged records read as zeros: ENOSPC of a log file's fdatasync counted as a full disk, was tried again and
    succeeded, and the checkpoint recycled the journal that had held the pages which the failed sync had dropped."""
    files = FailingFiles()
    values = [b"flushed early, not synced", *(large(each) for each in range(5))]
    async with open_simulated(files, CONFIG) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", values[0])
        assert await engine.parts.checkpointer.flush()
        await appended(engine, "s", *values[1:])
        files.fail_next("^fdatasync /data/log/", number)
        await checkpoint_in_background(engine)
        assert files.failed, "the tail is large enough to be synced at once"
        assert engine.failure is not None
        with pytest.raises(StorageFailedError, match=os.strerror(number)):
            await append(engine, "s", b"not taken")
        assert await values_of(engine, "s") == values
    after = files.crash(everything_lost)
    async with open_simulated(after, CONFIG) as engine:
        assert await values_of(engine, "s") == values


async def checkpoint_in_background(engine: Engine) -> None:
    """Have the background task make a checkpoint, as it does when the journal has grown; return when it gave up."""

    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    with trio.fail_after(PATIENCE_S), pytest.raises(StorageFailedError):
        await engine.parts.checkpointer.after_checkpoint(nothing)


@pytest.mark.parametrize("number", NUMBERS, ids=NAMES)
@pytest.mark.parametrize("shards", [3, 40], ids=["one-by-one", "all-at-once"])
async def test_a_checkpoint_whose_sync_fails_is_not_made_later(number: int, shards: int) -> None:
    """A failed sync of many files at once is as final as one of a single file."""
    files = FailingFiles()
    async with open_simulated(files, CONFIG) as engine:
        for each in range(shards):
            await engine.create_shard(f"s{each}", ShardConfig())
            await append(engine, f"s{each}", b"v")
        files.fail_next("^sync all" if shards > 32 else "^fdatasync /data/log/", number)
        await checkpoint_in_background(engine)
        assert engine.failure is not None
    after = files.crash(everything_lost)
    async with open_simulated(after, CONFIG) as engine:
        for each in range(shards):
            assert await values_of(engine, f"s{each}") == [b"v"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("what", ["write", "create"])
async def test_a_write_that_finds_no_space_is_repeated_when_there_is_some(number: int, what: str) -> None:
    """What is still in memory has lost nothing: such an error does not stop the engine."""
    files = FailingFiles()
    values = [large(each) for each in range(5)]
    async with open_simulated(files, CONFIG) as engine:
        await engine.create_shard("s", ShardConfig())
        await appended(engine, "s", *values)
        shard = engine.parts.table.by_name("s")
        path = f"/data/log/{shard.shard_id % 256:02x}/"
        if what == "write":
            # Part of it is in its file, and not synced, when the disk fills up.
            assert await engine.parts.checkpointer.flush()
            await append(engine, "s", b"one more")
            values.append(b"one more")
        files.fail_next(f"^{what} .*{path}", number)
        assert not await engine.parts.checkpointer.flush()
        assert engine.failure is None
        assert engine.parts.disk_space.full is not None
        assert "/data/log" in str(engine.parts.disk_space.full)
        engine.parts.checkpointer.look_at_disk()
        assert engine.parts.disk_space.full is None
        await engine.parts.checkpointer.checkpoint()
        assert engine.parts.checkpointer.checkpoints == 1
    after = files.crash(everything_lost)
    async with open_simulated(after, CONFIG) as engine:
        assert await values_of(engine, "s") == values


class ForgetfulFile(SimulatedFile):
    """A file whose error of a background write is reported once, to descriptors that were open when it happened."""

    error = False
    name = ""

    def fdatasync(self) -> None:
        if self.error:
            self.error = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
        super().fdatasync()


class ForgetfulDirectory(SimulatedDirectory):
    error = False

    def sync_all(self) -> None:
        if self.error:
            self.error = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), "syncfs")
        super().sync_all()


class ForgetfulFiles(SimulatedFileSystem):
    """A kernel that can fail to write dirty pages back, and evicts the inodes of files that are not open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: set[ForgetfulFile] = set()
        self.directories: set[ForgetfulDirectory] = set()
        self.written: dict[str, ForgetfulFile] = {}
        self.most_open = 0

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimulatedFile:
        plain = super().open(path, create=create, write=write)
        file = ForgetfulFile(self, plain._content, path, write)
        file.name = path
        if path.endswith(".log"):
            self.written[path] = file
        self.opened = {each for each in self.opened if not each._closed} | {file}
        self.most_open = max(self.most_open, sum("/log/" in each.name for each in self.opened))
        return file

    def open_directory(self, path: str) -> SimulatedDirectory:
        directory = ForgetfulDirectory(self, path)
        self.directories.add(directory)
        return directory

    def lose_pages(self, beginning: str) -> None:
        """Fail to write back the dirty pages of the files below a directory."""
        for file in self.written.values():
            file._content.unsynced.clear()
        for file in self.opened:
            file.error = file.error or (not file._closed and file.name.startswith(beginning))
        for directory in self.directories:
            directory.error = True


@pytest.mark.parametrize("shards", [1, 40])
async def test_a_page_that_the_kernel_could_not_write_back_is_noticed_at_the_checkpoint(shards: int) -> None:
    """Acknowledged records were lost: a log file was written, closed, and opened again to be synced. The error of the
    background write had gone with the evicted inode, the sync succeeded, and the journal was recycled."""
    files = ForgetfulFiles()
    async with open_simulated(files, CONFIG) as engine:
        for each in range(shards):
            await engine.create_shard(f"s{each}", ShardConfig())
            await append(engine, f"s{each}", b"v")
        assert await engine.parts.checkpointer.flush()
        files.lose_pages("/data/log/")
        await checkpoint_in_background(engine)
        assert engine.failure is not None
    after = files.crash(everything_lost)
    async with open_simulated(after, CONFIG) as engine:
        for each in range(shards):
            assert await values_of(engine, f"s{each}") == [b"v"]


async def test_the_number_of_files_that_wait_open_for_their_sync_is_bounded() -> None:
    files = ForgetfulFiles()
    async with open_simulated(files, attrs.evolve(CONFIG)) as engine:
        for each in range(300):
            await engine.create_shard(f"s{each}", ShardConfig())
            await append(engine, f"s{each}", b"v")
            if each % 20 == 0:
                assert await engine.parts.checkpointer.flush()
                assert sum("/log/" in file.name and not file._closed for file in files.opened) <= 32
        await engine.parts.checkpointer.checkpoint()
        assert not any("/log/" in file.name and not file._closed for file in files.opened)
    assert files.most_open < 300
