"""A whole data directory of version 1 under today's program: everything that can be done with one is done with it.

What the directory holds record by record is compared in `test_golden_files`; here it goes through what operators do.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow.parquet
import pytest

from journal.backup import Source, back_up, newest_lsn, restore
from journal.check import check_directory
from journal.compaction import compact
from journal.engine import Engine, open_engine
from shards.seams.os_file_system import OsFileSystem
from tests.journal.engines import append, config, values_of
from tests.journal.golden import GOLDEN

FILES = OsFileSystem()
SHARDS = ("numbered", "plant/line-\u00fc", "switched", "volatile")
PLANT = [
    *(b"%d" % number * 20_000 for number in range(2, 6)),
    b"second",
    b"segment",
    b"behind the checkpoint",
    b"and the last one",
]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory as a power loss left it: a checkpoint, and a journal that goes on behind it."""
    with tarfile.open(GOLDEN / "data_directory.tar.xz") as archive:
        # A file of this repository; Python before 3.11.4 has no filters for what an archive may hold.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return tmp_path / "data"


async def everything(engine: Engine) -> dict[str, list[bytes]]:
    assert tuple(engine.parts.table.catalogue.matching("#")) == SHARDS
    return {name: await values_of(engine, name) for name in SHARDS}


async def read(directory: Path) -> dict[str, list[bytes]]:
    async with open_engine(str(directory), config()) as engine:
        return await everything(engine)


@pytest.mark.slow("starts the process that writes Parquet")
async def test_an_old_directory_is_read_written_sealed_and_exported(old: Path) -> None:
    async with open_engine(str(old), config()) as engine:
        before = await everything(engine)
        assert before["plant/line-\u00fc"] == PLANT
        for name in SHARDS[:3]:
            await append(engine, name, b"today")
            await engine.convert(name)
        assert await everything(engine) == {
            name: values + [b"today"] * (name != "volatile") for name, values in before.items()
        }
    assert check_directory(str(old)).damages == []
    # What is in Parquet files now is what plain readers of the directory get, old and new.
    exported: dict[str, list[bytes]] = {name: [] for name in SHARDS[:3]}
    for file in sorted((old / "sealed").glob("date=*/*.parquet")):
        for row in pyarrow.parquet.ParquetFile(file).read(columns=["shard", "value"]).to_pylist():
            exported[row["shard"]].append(row["value"])
    # Records that are trimmed are before those that count.
    assert {name: exported[name][-len(values) - 1 :] for name, values in before.items() if name in exported} == {
        name: [*before[name], b"today"] for name in exported
    }


async def test_upgrades_that_are_killed_before_the_views_know_of_the_journal_are_made_again(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORMAT said that the directory was whole before the views did: every later start was refused, with all there."""
    with monkeypatch.context() as patch:
        patch.setattr("journal.engine.startup.put_number", _killed)
        for _ in range(3):
            with pytest.raises(_Killed):
                await read(old)
            assert check_directory(str(old)).damages == []
    assert (await read(old))["plant/line-\u00fc"] == PLANT
    assert check_directory(str(old)).damages == []


class _Killed(BaseException):
    """The process ends here."""


def _killed(*_: object) -> None:
    raise _Killed


async def test_an_old_directory_is_backed_up_as_it_is_and_restored(old: Path, tmp_path: Path) -> None:
    lsn = newest_lsn(FILES, f"{old}/journal")
    made = back_up(FILES, Source(str(old), lsn), str(tmp_path / "backup"), now_us=1, keep=1)
    assert made.lsn == 41
    assert check_directory(str(tmp_path / "backup")).damages == []
    restore(FILES, str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert await read(tmp_path / "restored") == await read(old)


async def test_a_running_engine_on_an_old_directory_makes_snapshots(old: Path, tmp_path: Path) -> None:
    async with open_engine(str(old), config()) as engine, engine.parts.snapshots.take() as snapshot:
        back_up(FILES, Source(snapshot.path, snapshot.lsn), str(tmp_path / "backup"), now_us=1, keep=1)
    restore(FILES, str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert check_directory(str(tmp_path / "restored")).damages == []
    assert await read(tmp_path / "restored") == await read(old)


async def test_an_old_directory_is_compacted(old: Path) -> None:
    await compact(str(old), config())
    assert check_directory(str(old)).damages == []
    assert (await read(old))["plant/line-\u00fc"] == PLANT
