"""The Parquet files of a batch: one for each day, and which of them are merged later."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards.seams.os_file_system import OsFileSystem
from spark_export.tables.compaction import LARGE_BYTES, MOST_BYTES, due
from spark_export.tables.delta_log import TableFile
from spark_export.tables.part_files import PartFiles, leftovers
from spark_export.tables.schema import arrow_schema
from tests.tables.declared import declared

DAY_US = 86_400_000_000
FIRST_US = 1_772_323_200_000_000  # 2026-03-01
MIB = 1 << 20


def batch(schema: pa.Schema, *times_us: int) -> pa.RecordBatch:
    count = len(times_us)
    columns = {
        "topic": ["t"] * count,
        "shard": ["t"] * count,
        "shard_id": [1] * count,
        "offset": list(range(count)),
        "append_time": pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
    }
    arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def test_rows_are_in_the_file_of_the_day_of_their_append(tmp_path: Path) -> None:
    schema = arrow_schema(declared(tmp_path))
    out = PartFiles(OsFileSystem(), str(tmp_path), 7, schema)
    out.write(batch(schema, FIRST_US, FIRST_US + DAY_US - 1))
    out.write(batch(schema, FIRST_US + DAY_US - 1, FIRST_US + DAY_US, FIRST_US + 2 * DAY_US))
    found = {part.path.partition("/")[0]: part for part in out.finish()}
    assert {date: part.rows for date, part in found.items()} == {
        "date=2026-03-01": 3,
        "date=2026-03-02": 1,
        "date=2026-03-03": 1,
    }
    for part in found.values():
        assert part.size_bytes == (tmp_path / part.path).stat().st_size
        assert pq.read_table(tmp_path / part.path).num_rows == part.rows == json.loads(part.statistics)["numRecords"]
    bounds = json.loads(found["date=2026-03-01"].statistics)
    assert bounds["minValues"]["append_time"] == "2026-03-01T00:00:00.000000Z"
    assert bounds["maxValues"]["append_time"] == "2026-03-01T23:59:59.999999Z"
    assert (bounds["minValues"]["offset"], bounds["maxValues"]["offset"]) == (0, 1)


def test_a_batch_over_many_days_has_few_files_open(tmp_path: Path) -> None:
    schema = arrow_schema(declared(tmp_path))
    out = PartFiles(OsFileSystem(), str(tmp_path), 7, schema)
    for day in range(30):
        out.write(batch(schema, FIRST_US + day * DAY_US))
        assert len(out._open) <= 8
    out.write(batch(schema, FIRST_US))
    parts = out.finish()
    assert len(parts) == 31
    assert len({part.path for part in parts}) == 31
    assert list(leftovers(OsFileSystem(), str(tmp_path), 7)) == []
    assert len(list(leftovers(OsFileSystem(), str(tmp_path), 6))) == 31
    out.abandon()
    assert not list(tmp_path.rglob("*.parquet"))


def files(date: str, *sizes: int) -> list[TableFile]:
    return [TableFile(f"date={date}/{number:08}-0.parquet", size, 1) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("there", "count"),
    [
        (files("2026-03-02", *[1000] * 7), 0),
        (files("2026-03-02", *[1000] * 8), 8),
        (files("2026-03-02", *[1000] * 7, MIB), 0),
        (files("2026-03-02", *[MIB] * 8, *[1000] * 7), 8),
        (files("2026-03-02", *[LARGE_BYTES] * 20), 0),
        (files("2026-03-02", *[20 * MIB] * 20), MOST_BYTES // (20 * MIB)),
        (files("2026-03-02", *[1000] * 1000), 256),
        (files("2026-03-01", 1000, MIB), 2),
        (files("2026-03-01", 1000, LARGE_BYTES), 0),
        ([TableFile("part-00000-of-another-program.parquet", 1000, 1)] * 20, 0),
    ],
)
def test_files_of_similar_size_are_merged_and_small_ones_of_a_day_that_is_over(
    there: list[TableFile], count: int
) -> None:
    chosen = due(there, "2026-03-02")
    assert len(chosen) == count
    assert len({file.partition for file in chosen}) <= 1
    assert sum(file.size_bytes for file in chosen) <= MOST_BYTES


def test_merging_all_files_of_a_busy_day_writes_each_row_a_few_times() -> None:
    """A batch a minute: without tiers a row would be written again with every eighth batch."""
    there: list[TableFile] = []
    written = 0
    for number in range(1440):
        there.append(TableFile(f"date=2026-03-02/{number:08}-0.parquet", 100_000, 1))
        while merged := due(there, "2026-03-02"):
            size = sum(file.size_bytes for file in merged)
            written += size
            there = [file for file in there if file not in merged]
            there.append(TableFile(f"date=2026-03-02/{number:08}-{len(merged)}.parquet", size, 1))
        assert len(there) <= 4 * 8
    assert written <= 4 * 1440 * 100_000
