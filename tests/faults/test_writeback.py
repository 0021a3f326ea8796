"""Pages that the kernel could not write back, on a real file system."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import trio

from journal.engine import open_engine
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import StorageFailedError
from shards.model import ShardConfig
from shards.seams.os_file_system import OsFileSystem
from tests.faults.disks import MIB, ext4_on_too_little, fill
from tests.journal.engines import append, values_of
from tests.patience import PATIENCE_S

CONFIG = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=4 * MIB, journal_budget_bytes=64 * MIB, disk_reserve_bytes=0, flush_interval_ms=60_000
    )
)


pytestmark = pytest.mark.usefixtures("any_directory_may_be_a_mount")


def forget_clean_inodes() -> None:
    """Have the kernel evict what is clean and not open, as it does when memory is short."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        pytest.skip(f"the kernel's caches cannot be dropped here: {error}")


@pytest.mark.slow("damages pages below a running engine")
@pytest.mark.parametrize("shards", [2, 40])
async def test_a_page_of_a_log_file_that_was_lost_between_write_and_sync_stops_the_engine(
    tmp_path: Path, shards: int
) -> None:
    """Acknowledged records were lost: the log file was closed after it was written and opened again to be synced, and
    the error was gone with the inode that the kernel had evicted meanwhile."""
    data = tmp_path / "data"
    async with open_engine(str(data), CONFIG):
        (data / "log").rename(tmp_path / "content")
        (data / "log").mkdir()
    # The last one is flushed and, being under 1 MiB, not synced at once.
    values = [*(os.urandom(20_000) for _ in range(3)), os.urandom(900_000 if shards == 2 else 200_000)]
    with ext4_on_too_little(data / "log", tmp_path / "aside") as (log, ballast):
        (log / "lost+found").rmdir()
        shutil.copytree(tmp_path / "content", log, dirs_exist_ok=True)
        async with open_engine(str(data), CONFIG) as engine:
            for each in range(shards):
                await engine.create_shard(f"s{each}", ShardConfig())
                for value in values[:3]:
                    await append(engine, f"s{each}", value)
            assert await engine.parts.checkpointer.flush()
            # The inodes are on the disk: a lost one would be damage of the file system.
            OsFileSystem().sync_all(str(log))
            for each in range(shards):
                await append(engine, f"s{each}", values[3])
            assert await engine.parts.checkpointer.flush()
            fill(ballast)
            with pytest.raises(OSError, match="syncfs"):
                OsFileSystem().sync_all(str(log))
            ballast.unlink()
            forget_clean_inodes()

            async def nothing() -> None:
                await trio.lowlevel.checkpoint()

            with trio.fail_after(PATIENCE_S), pytest.raises(StorageFailedError):
                await engine.parts.checkpointer.after_checkpoint(nothing)
            assert engine.failure is not None
        # The journal has everything; the files are written again.
        async with open_engine(str(data), CONFIG) as engine:
            await engine.parts.checkpointer.checkpoint()
            assert engine.parts.checkpointer.checkpoints == 1
        forget_clean_inodes()
        async with open_engine(str(data), CONFIG) as engine:
            for each in range(shards):
                assert await values_of(engine, f"s{each}") == values
