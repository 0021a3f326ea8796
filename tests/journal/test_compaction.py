"""Compacting removes what no record knows and nothing else, and leaves a damaged directory alone."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path

import attrs
import pytest
import trio

from journal.check import check_directory
from journal.compaction import compact
from journal.engine import open_engine
from journal.settings.server import ConversionConfig
from shards.errors import CorruptionError, DataDirectoryError
from shards.model import SegmentKind, ShardConfig
from shards.seams.os_file_system import OsFileSystem
from tests.journal.engines import append, config, stop_without_checkpoint, values_of
from tests.patience import PATIENCE_S

DELETED_BYTES = 150_000


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A directory with a sealed segment and a log, and much in the views that was deleted again."""
    directory = tmp_path / "data"
    async with open_engine(str(directory), config()) as engine:
        await engine.create_shard("plant", ShardConfig())
        await append(engine, "plant", b"sealed" * 1000)
        await engine.convert("plant")
        await append(engine, "plant", b"in the log" * 1000)
        for number in range(300):
            value = random.Random(number).randbytes(DELETED_BYTES // 300)
            await engine.put_state(b"%d" % number, value, None, 0)
    async with open_engine(str(directory), config()) as engine:
        for number in range(300):
            await engine.delete_state(b"%d" % number, None)
    return directory


def leave_behind(data: Path) -> dict[Path, int]:
    """Files as crashes and files put back from elsewhere leave them: of a deleted shard, and a replaced log."""
    (log,) = data.glob("log/*/*.log")
    (sealed,) = data.glob("sealed/*/*.parquet")
    left = {
        data / "log/fe/00000000000000fe-00000000000000000000.log": log,
        data / "log/fe/00000000000000fe-00000000000000000000.index": log,
        sealed.with_name(f"{sealed.name[:-24]}00000000000000fe.parquet"): sealed,
        data / "sealed/date=2020-01-01" / sealed.name: sealed,
    }
    for path, source in left.items():
        path.parent.mkdir(exist_ok=True)
        shutil.copy(source, path)
    return {path: path.stat().st_size for path in left}


def digests(data: Path) -> dict[str, str]:
    return {
        str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in ("log", "sealed")
        for path in (data / name).rglob("*")
        if path.is_file()
    }


async def test_what_no_record_knows_goes_and_the_rest_stays_as_it_is(data: Path) -> None:
    before = digests(data)
    left = leave_behind(data)
    (data / "sealed/notes.txt").write_text("of the operator")
    compacted = await compact(str(data), config())
    assert (compacted.removed_files, compacted.removed_bytes) == (4, sum(left.values()))
    # RocksDB may have done it by itself before.
    assert compacted.views_after_bytes <= compacted.views_before_bytes
    assert compacted.views_after_bytes < DELETED_BYTES // 10
    assert (
        compacted.gained_bytes == compacted.removed_bytes + compacted.views_before_bytes - compacted.views_after_bytes
    )
    (data / "sealed/notes.txt").unlink()
    assert digests(data) == before
    assert not (data / "sealed/date=2020-01-01").exists()
    report = check_directory(str(data))
    assert (report.damages, report.notes) == ([], [])
    async with open_engine(str(data), config()) as engine:
        assert await values_of(engine, "plant") == [b"sealed" * 1000, b"in the log" * 1000]
        assert (await engine.scan_state(b"", None, 10))[0] == []


async def test_shared_files_stay_while_something_in_them_is_kept(tmp_path: Path) -> None:
    """A deleted shard leaves dead rows, and a file of which nothing is kept goes; so does one that no record knows."""
    data = tmp_path / "data"
    gathering = attrs.evolve(config(), conversion=ConversionConfig(max_age_s=1))
    async with open_engine(str(data), gathering) as engine:
        for names in (("a", "b"), ("c",)):
            for name in names:
                await engine.create_shard(name, ShardConfig())
                await append(engine, name, name.encode())
                await engine.roll(name)
            with trio.fail_after(PATIENCE_S):
                while not all(
                    engine.parts.table.by_name(name).segments[0].kind is SegmentKind.PARQUET for name in names
                ):
                    await trio.sleep(0.02)
        await engine.checkpoint()
        with trio.fail_after(PATIENCE_S):
            while not engine.parts.history.is_current:
                await trio.sleep(0.02)
        assert engine.parts.history.status.version >= 0
    kept, gone = sorted(data.glob("sealed/date=*/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    stranger = kept.with_name("00000000000000fe.parquet")
    shutil.copy(kept, stranger)
    async with open_engine(str(data), config()) as engine:
        await engine.delete_shard("b")
        await engine.delete_shard("c")
        stop_without_checkpoint(engine)
    assert gone.exists()
    assert (await compact(str(data), config())).removed_files == 2
    assert list(data.glob("sealed/date=*/*.parquet")) == [kept]
    report = check_directory(str(data))
    assert (report.damages, report.notes) == ([], [])
    async with open_engine(str(data), config()) as engine:
        assert await values_of(engine, "a") == [b"a"]


@pytest.mark.slow("writes a directory with many files")
async def test_a_second_time_there_is_nothing_to_gain(data: Path) -> None:
    await compact(str(data), config())
    again = await compact(str(data), config())
    assert again.removed_files == 0
    assert abs(again.views_before_bytes - again.views_after_bytes) < 4096


@pytest.mark.slow("writes a directory with many files")
async def test_a_damaged_directory_is_left_alone(data: Path) -> None:
    left = leave_behind(data)
    (log,) = [path for path in data.glob("log/*/*.log") if path not in left]
    content = bytearray(log.read_bytes())
    content[200] ^= 1
    log.write_bytes(content)
    before = digests(data)
    with pytest.raises(CorruptionError, match="nothing was changed"):
        await compact(str(data), config())
    assert digests(data) == before


@pytest.mark.slow("writes a directory with many files")
async def test_a_directory_in_use_is_refused(data: Path) -> None:
    lock = OsFileSystem().lock(str(data))
    try:
        with pytest.raises(DataDirectoryError, match="in use"):
            await compact(str(data), config())
    finally:
        lock.release()
