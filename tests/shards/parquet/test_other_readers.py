"""Programs that know nothing of us read shared files, and find the records that the shard's readers find."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from shards.format.batch import Codec, encode
from shards.format.record import Record, StoredRecord
from tests.shards.batches import NOW_US
from tests.shards.parquet.shared_files import NAME, as_stored, gather_batches
from tests.shards.parquet.stamped_batches import decode_all, records_of, stamp_all

RECORDS = [
    Record(
        value=b'{"celsius": %d}' % number if number % 5 else b"\x00\xff",
        key=b"sensor-%d" % (number % 3) if number % 4 else b"",
        topic="plant/\u00fc\U0001f321" if number % 2 else "",
        timestamp_us=NOW_US - 1000 * (number % 7),
        headers=(("type", b"json"), ("", b""))[: number % 3],
        tags=("a", "r\u00e9sum\u00e9", "")[: number % 4],
        expires_at_us=NOW_US * (number % 2),
    )
    for number in range(200)
]


@pytest.fixture(scope="module")
def log() -> bytes:
    codecs = list(Codec)
    return stamp_all(
        [encode(RECORDS[at : at + 7], now_us=NOW_US, codec=codecs[at % 3]) for at in range(0, len(RECORDS), 7)]
    )


@pytest.fixture(scope="module")
def directory(log: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with one shared file."""
    gathered = gather_batches(log, row_group_bytes=2000)
    (made,) = gathered.made.files
    assert made.row_groups > 3
    content = gathered.content()
    path = tmp_path_factory.mktemp("data") / gathered.put_in_place()[1:]
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path.parents[1]


def in_order(rows: pa.Table) -> list[StoredRecord]:
    return sorted(records_of(as_stored(rows)), key=lambda record: record.offset)


def expected_columns(rows: pa.Table) -> None:
    """Each row names its shard and the day of its append, and has a topic."""
    assert set(rows.column("shard").to_pylist()) == {NAME}
    assert {str(day) for day in rows.column("date").to_pylist()} == {"2023-11-14"}
    assert "" not in rows.column("topic").to_pylist()


def test_duckdb_reads_the_records(directory: Path, log: bytes) -> None:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        rows = database.sql(f"FROM read_parquet('{directory}/*/*.parquet', hive_partitioning = true)").to_arrow_table()
        assert in_order(rows) == decode_all(log)
        expected_columns(rows)
        (found,) = database.sql(
            f"SELECT count(*) FROM '{directory}/*/*.parquet' WHERE \"offset\" >= 1050 AND topic != shard"
        ).fetchall()
        assert found == (sum(record.offset >= 1050 and record.topic != "" for record in decode_all(log)),)


def test_polars_reads_the_records(directory: Path, log: bytes) -> None:
    lazy = pl.scan_parquet(f"{directory}/*/*.parquet")
    rows = lazy.collect().to_arrow()
    assert in_order(rows) == decode_all(log)
    some = lazy.filter(pl.col("lsn") > 30, pl.col("key") == b"sensor-1").collect()
    assert in_order(some.to_arrow()) == [
        record for record in decode_all(log) if record.lsn > 30 and record.key == b"sensor-1"
    ]


def test_arrow_reads_the_directory_as_one_table(directory: Path, log: bytes) -> None:
    import pyarrow.dataset

    rows = pyarrow.dataset.dataset(directory, partitioning="hive").to_table()
    assert in_order(rows) == decode_all(log)
    expected_columns(rows)
