"""Other programs read the Delta table while a server gathers, rewrites and removes: at every moment what it answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pytest
import trio
from deltalake import DeltaTable

from journal.check import check_directory
from journal.engine import Engine, open_engine
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from shards.model import ShardConfig
from tests.journal.engines import append, values_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow("starts processes that write Parquet")

CONFIG = ServerConfig(
    storage=StorageConfig(disk_reserve_bytes=0, flush_interval_ms=20),
    conversion=ConversionConfig(max_age_s=1, delta_grace_s=60),
)
NAMES = ("plant/a", "plant/b", "plant/c")
Row = tuple[str, int, bytes]


def by_deltalake(root: str) -> list[Row]:
    table = DeltaTable(root).to_pyarrow_table(columns=["shard", "offset", "value"])
    return list(zip(*(table.column(name).to_pylist() for name in ("shard", "offset", "value")), strict=True))


def by_polars(root: str) -> list[Row]:
    return pl.scan_delta(root).select("shard", "offset", "value").collect().rows()


def by_duckdb(root: str) -> list[Row]:
    with duckdb.connect() as database:
        database.register("records", DeltaTable(root).to_pyarrow_dataset())
        return database.sql('SELECT shard, "offset", value FROM records').fetchall()


READERS: list[Callable[[str], list[Row]]] = [by_deltalake, by_polars, by_duckdb]


async def read(root: str, reader: Callable[[str], list[Row]]) -> list[Row]:
    return sorted(await trio.to_thread.run_sync(reader, root))


def require_prefixes(rows: list[Row], appended: dict[str, list[bytes]]) -> None:
    """Each record once, with its value, and of each shard all from its first one on up to some offset."""
    for name in NAMES:
        found = [(offset, value) for shard, offset, value in rows if shard == name]
        assert found == list(enumerate(appended[name]))[: len(found)]


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not holds():
            await trio.sleep(0.02)


def segments(engine: Engine, name: str) -> int:
    return len(engine.parts.table.by_name(name).segments)


async def test_readers_see_what_the_server_answers_while_it_works(tmp_path: Path) -> None:
    data = tmp_path / "data"
    root = str(data / "sealed")
    appended: dict[str, list[bytes]] = {name: [] for name in NAMES}
    versions: set[int] = set()
    async with open_engine(str(data), CONFIG) as engine:
        history = engine.parts.history
        for name in NAMES:
            await engine.create_shard(name, ShardConfig())

        async def keep_reading() -> None:
            # The table is made with the first file.
            await until(lambda: history.version >= 0)
            while True:
                for reader in READERS:
                    require_prefixes(await read(root, reader), appended)
                    versions.add(DeltaTable(root).version())

        async with trio.open_nursery() as readers:
            readers.start_soon(keep_reading)
            for turn in range(8):
                for name in NAMES:
                    for number in range(3):
                        value = f"{name} {turn} {number}".encode()
                        appended[name].append(value)
                        await append(engine, name, value)
                    await engine.roll(name)
                await until(lambda many=(turn + 1) * 9: history.is_current and total(engine) == many)
            await engine.checkpoint()
            # Eight files of a day become one.
            await until(lambda: len(history_files(engine)) == 1 and history.is_current)
            readers.cancel_scope.cancel()
        answer: list[Row] = []
        for name in NAMES:
            answer += [(name, offset, value) for offset, value in enumerate(await values_of(engine, name))]
        for reader in READERS:
            assert await read(root, reader) == answer
        assert len(versions) > 3
        planned = DeltaTable(root).to_pyarrow_dataset()
        await engine.parts.commands.trim(NAMES[0], 24)
        await engine.delete_shard(NAMES[1])
        await engine.checkpoint()
        # Most of the file is dead, so that it is rewritten.
        await until(lambda: {name for name, _, _ in by_deltalake(root)} == {NAMES[2]})
        # Who has planned before finds the files: they stay for the grace time.
        assert planned.to_table().num_rows == 72
    report = check_directory(str(data))
    assert (report.damages, report.notes) == ([], [])
    async with open_engine(str(data), CONFIG) as engine:
        await until(lambda: engine.parts.history.version >= 0 and engine.parts.history.is_current)
        assert await read(root, by_duckdb) == [row for row in answer if row[0] == NAMES[2]]


def history_files(engine: Engine) -> list[tuple[int, int]]:
    return engine.parts.views.files.valid(engine.parts.checkpointer.checkpoint_lsn)


def total(engine: Engine) -> int:
    """Records in the files that are valid."""
    files = engine.parts.views.files
    return sum(record.record_count for key in history_files(engine) if (record := files.get(key)) is not None)


async def test_a_server_without_gathering_needs_no_library(tmp_path: Path) -> None:
    """It is imported by the process that writes the table, when there is one."""
    code = (
        "import sys, trio\n"
        "from journal.engine import open_engine\n"
        "import journal.engine.parquet.worker, journal.server.server, journal.cli.main\n"
        "assert 'deltalake' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
    async with open_engine(str(tmp_path), ServerConfig()) as engine:
        assert engine.parts.history.is_current
        assert not (tmp_path / "sealed" / "_delta_log").exists()
