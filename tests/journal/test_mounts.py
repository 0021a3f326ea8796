"""A data directory that is divided over file systems where files are renamed and linked between its directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.engine import open_engine
from journal.engine.directory.placement import mounts_below
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import DataDirectoryError
from shards.model import ShardConfig
from tests.faults.disks import mounted
from tests.journal.engines import append, values_of

CONFIG = ServerConfig(storage=StorageConfig(disk_reserve_bytes=0))
TABLE = """\
25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
301 30 0:60 / /srv/data/journal rw,relatime - tmpfs none rw,size=20480k
302 30 8:1 /old /srv/data/with\\040space rw,relatime - ext4 /dev/sda1 rw
303 30 8:1 / /srv/data2 rw,relatime - ext4 /dev/sda1 rw
304 30 8:1 / /srv/data rw,relatime - ext4 /dev/sda1 rw
"""


def test_only_mounts_below_a_directory_are_its_own() -> None:
    assert list(mounts_below("/srv/data", TABLE)) == ["/srv/data/journal", "/srv/data/with space"]
    assert list(mounts_below("/srv/data", "not a table\n\n")) == []


@pytest.mark.parametrize("name", ["sealed", "log", "sealing"])
async def test_a_start_refuses_a_directory_that_files_cannot_be_renamed_into(tmp_path: Path, name: str) -> None:
    """Nothing was ever sealed there, and the first trim within a Parquet file ended the server permanently."""
    data = tmp_path / "data"
    async with open_engine(str(data), CONFIG):
        pass
    with mounted(data / name, "-t", "tmpfs", "-o", "size=1m", "none"):
        with pytest.raises(DataDirectoryError, match=rf"{data / name} is a mount of its own\. .* unmount it"):
            async with open_engine(str(data), CONFIG):
                pass
    async with open_engine(str(data), CONFIG):
        pass


async def test_a_start_takes_a_journal_on_a_file_system_of_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with mounted(data / "journal", "-t", "tmpfs", "-o", "size=100m", "none"):
        async with open_engine(str(data), CONFIG) as engine:
            await engine.create_shard("s", ShardConfig())
            await append(engine, "s", b"value")
            await engine.parts.checkpointer.checkpoint()
            assert await values_of(engine, "s") == [b"value"]
