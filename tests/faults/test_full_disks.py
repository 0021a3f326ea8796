"""Disks that another program fills up, each of them one that holds a part of a data directory. Real file systems."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from journal.engine import Engine, open_engine
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import DiskFullError
from shards.model import ShardConfig
from tests.faults.disks import MIB, ext4, fill
from tests.journal.engines import append, values_of
from tests.patience import PATIENCE_S

CONFIG = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=2 * MIB,
        journal_budget_bytes=64 * MIB,
        disk_reserve_bytes=0,
        flush_interval_ms=50,
        retention_interval_s=86_400,
    )
)
pytestmark = pytest.mark.usefixtures("any_directory_may_be_a_mount")
PARTS = ["journal", "log", "state"]


@asynccontextmanager
async def on_a_disk_of_its_own(tmp_path: Path, part: str) -> AsyncIterator[tuple[str, Path]]:
    """A data directory a part of which is in a file system of 40 MiB: (the directory, a file to fill that up)."""
    data = tmp_path / "data"
    async with open_engine(str(data), CONFIG):
        pass
    (data / part).rename(tmp_path / "content")
    (data / part).mkdir()
    with ext4(data / part, tmp_path / "image", 40 * MIB):
        (data / part / "lost+found").rmdir()
        shutil.copytree(tmp_path / "content", data / part, dirs_exist_ok=True)
        # Beside it: the engine knows what it finds in its directories.
        yield str(data), data / part / "ballast"


@pytest.mark.slow("fills disks")
@pytest.mark.parametrize("part", PARTS)
async def test_a_full_disk_of_any_part_refuses_appends_and_takes_them_again_when_there_is_space(
    tmp_path: Path, part: str
) -> None:
    """The server failed for ever when another program had filled the disk of its journal or of its views, although
    nothing had been lost, and went on failing when there was space again."""
    async with on_a_disk_of_its_own(tmp_path, part) as (data, ballast):
        values: list[bytes] = []
        async with open_engine(data, CONFIG) as engine:
            await engine.create_shard("s", ShardConfig())
            await append(engine, "s", b"first")
            values.append(b"first")
            fill(ballast)
            async with trio.open_nursery() as nursery:
                # What was accepted before anything noticed is acknowledged in the end.
                waiting: list[bytes] = []

                async def accepted(value: bytes) -> None:
                    try:
                        await append(engine, "s", value)
                    except DiskFullError:
                        values.remove(value)
                    waiting.remove(value)

                def met() -> bool:
                    if part == "journal":
                        # Not only a spare file found no space, but a group.
                        return engine.parts.committer.disk_full is not None
                    return engine.parts.disk_space.full is not None

                with trio.fail_after(PATIENCE_S):
                    while not met():
                        value = os.urandom(50_000)
                        values.append(value)
                        waiting.append(value)
                        nursery.start_soon(accepted, value)
                        if part == "log":
                            engine.parts.checkpointer.flush_soon(engine.parts.table.by_name("s"))
                        elif part == "state":
                            await checkpointed(engine)
                        await trio.sleep(0.001)
                assert f"{data}/{part}: No space left on device" in str(engine.parts.disk_space.full)
                assert engine.failure is None
                if part != "log":
                    # That of the log files is met again by each flush; with a reserve it is refused before.
                    engine.parts.checkpointer.look_at_disk()
                    with pytest.raises(DiskFullError, match=f"{data}/{part}"):
                        await append(engine, "s", b"refused")
                assert (await values_of(engine, "s"))[0] == b"first"
                ballast.unlink()
            assert not waiting
            with trio.fail_after(PATIENCE_S):
                while engine.parts.disk_space.full is not None:
                    await trio.sleep(0.01)
            await append(engine, "s", b"taken again")
            values.append(b"taken again")
            assert engine.failure is None
        async with open_engine(data, CONFIG) as engine:
            assert await values_of(engine, "s") == values


async def checkpointed(engine: Engine) -> None:
    """Have a checkpoint made; whether there is space for it is another question."""

    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    try:
        await engine.parts.checkpointer.after_checkpoint(nothing)
    except DiskFullError as error:
        assert "free some space" in str(error)


@pytest.mark.parametrize("part", [*PARTS, "sealed"])
async def test_the_free_space_of_every_disk_involved_is_watched(tmp_path: Path, part: str) -> None:
    """Only the data directory's own disk was looked at: the journal's filled up with no warning."""
    async with on_a_disk_of_its_own(tmp_path, part) as (data, _):
        # More than the disk of 40 MiB can have free, less than the one below it has.
        storage = attrs.evolve(CONFIG.storage, disk_reserve_bytes=64 * MIB)
        async with open_engine(data, attrs.evolve(CONFIG, storage=storage)) as engine:
            engine.parts.checkpointer.look_at_disk()
            assert f"the disk of {data}/{part} has " in str(engine.parts.disk_space.full)
            assert "storage.disk_reserve_bytes" in str(engine.parts.disk_space.full)
            assert engine.parts.disk_space.free_bytes < 40 * MIB
