"""Refusing everything, for as long as it takes: callers try again and again while a disk is full or broken."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from journal.engine import Engine, open_engine
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import DiskFullError, StorageError, StorageFailedError
from shards.format.batch import encode_values
from shards.model import ShardConfig
from shards.quantities import format_size

MIB = 1 << 20
CONFIG = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=4 * MIB, journal_budget_bytes=16 * MIB, disk_reserve_bytes=0, flush_interval_ms=60_000
    )
)
BATCH = encode_values([b"x"], timestamp_us=1)
TIMES = 50


def frames_held(error: BaseException) -> int:
    """How many frames an exception keeps alive by its traceback."""
    count, traceback = 0, error.__traceback__
    while traceback is not None:
        count, traceback = count + 1, traceback.tb_next
    return count


async def refused(engine: Engine, kind: type[StorageError]) -> StorageError:
    """Try everything that is refused, once; the error of the last."""
    shard = engine.parts.table.by_name("s")
    with pytest.raises(kind) as caught:
        await engine.append(shard, BATCH)
    with pytest.raises(kind):
        await engine.put_state(b"key", b"value", None, 0)
    with pytest.raises(kind):
        await engine.create_shard("t", ShardConfig())
    return caught.value


@pytest.mark.parametrize("cause", ["a disk that failed", "a disk that is full"])
async def test_refusals_do_not_pile_up_in_the_memory(cause: str, tmp_path: Path) -> None:
    """Found in a server whose disk had gone: after 40 minutes of retries it held 3 GB, and was blocked for 20 s."""
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        await engine.create_shard("s", ShardConfig())
        kind: type[StorageError]
        if cause == "a disk that is full":
            kind = DiskFullError
            engine.parts.disk_space.refuse_for(DiskFullError("full"))
        else:
            kind = StorageFailedError
            engine.parts.committer.fail(OSError(5, "Input/output error"))
        first = await refused(engine, kind)
        held = frames_held(first)
        for _ in range(TIMES):
            assert await refused(engine, kind) is first
        assert frames_held(first) == held
        engine.parts.disk_space.refuse_for(None)


async def test_the_log_says_when_appends_are_refused_and_when_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = attrs.evolve(CONFIG.storage, disk_reserve_bytes=1 << 43)
    async with open_engine(str(tmp_path / "data"), attrs.evolve(CONFIG, storage=full)) as engine:
        engine.parts.checkpointer.look_at_disk()
        engine.parts.checkpointer.look_at_disk()
        (told,) = [record for record in caplog.records if record.getMessage().startswith("appends are refused: ")]
        assert told.levelname == "WARNING"
        assert "storage.disk_reserve_bytes" in told.getMessage()
        with caplog.at_level("INFO"):
            engine.parts.disk_space.refuse_for(None)
            engine.parts.disk_space.refuse_for(None)
        assert [message for message in caplog.messages if message.startswith("appends are accepted again: ")] == [
            f"appends are accepted again: {format_size(engine.parts.disk_space.free_bytes)} are free"
        ]


async def test_the_log_says_that_the_storage_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        engine.parts.committer.fail(OSError(5, "Input/output error"))
        engine.parts.committer.fail(OSError(5, "Input/output error"))
        (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "Input/output error" in told.getMessage()
        assert "Restart the server once the disk is sound" in told.getMessage()
