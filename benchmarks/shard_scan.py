"""``python -m benchmarks.shard_scan DIRECTORY SHARDS``: Spark on shared files with many shards; prints a JSON object.

The files are made by the writer that the server's worker uses, of as many logs as the server gathers into one file, and
are a version of a Delta table. The scan alternates
with that of Parquet files which Spark itself wrote, with the same columns and rows, so that other load counts for both.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.history import FIRST_TIME_US, telemetry
from benchmarks.sizes import RECORDS_OF_A_SHARD
from journal.engine.parquet.gatherer import MOST_BYTES
from shards.delta.actions import TableRequest
from shards.delta.library import DeltaLibrary
from shards.delta.table import update_table
from shards.format.batch import encode_values, stamp
from shards.parquet.shared_file import write_shared_files
from shards.seams.os_file_system import OsFileSystem
from shards.segments.conversion_plan import PartSource, SharedPlan
from shards.segments.log_segment import LogHeader
from shards.segments.segment_paths import shared_path
from spark_export import read_sealed
from spark_export.session import end_session, make_session

RECORDS_OF_A_BATCH = 10
WARM_UP_RUNS = 4
RUNS = 5
FIRST_FILE_ID = 0x5CA4
COLUMNS = "topic, shard, offset, timestamp, append_time, key, value, headers, tags, date"
COUNTS = "SELECT topic, count(*), min(timestamp), max(offset) FROM {view} GROUP BY topic"
SCAN = "SELECT count(*), min(timestamp), max(offset) FROM {view}"


def main() -> None:
    directory, shards = Path(sys.argv[1]), int(sys.argv[2])
    names = [f"plant/line{number // 100:04}/sensor{number:06}" for number in range(shards)]
    sealed = write(directory, names)
    spark = make_session("journal benchmark")
    try:
        frame = read_sealed(spark, str(sealed))
        frame.createOrReplaceTempView("sealed")
        plain = str(directory / "plain")
        spark.sql(f"SELECT {COLUMNS} FROM sealed").write.option("compression", "zstd").parquet(plain)
        spark.read.parquet(plain).createOrReplaceTempView("plain")
        records = shards * RECORDS_OF_A_SHARD
        rates = _rates(spark, COUNTS, records)
        scanned = _rates(spark, SCAN, records)
        quiet = names[shards // 2]
        before = _bytes_read(spark)
        found = spark.sql(f"SELECT count(*), sum(length(value)) FROM sealed WHERE shard = '{quiet}'").first()
        read_bytes = _bytes_read(spark) - before
        if found is None or found[0] != RECORDS_OF_A_SHARD:
            raise SystemExit(f"expected {RECORDS_OF_A_SHARD} records of shard {quiet}, found {found}")
    finally:
        end_session(spark)
    figures = {
        "records_per_s": statistics.median(rates["sealed"]),
        "scanned_records_per_s": statistics.median(scanned["sealed"]),
        "over_plain": statistics.median(one / two for one, two in zip(rates["sealed"], rates["plain"], strict=True)),
        "quiet_share": read_bytes / sum(path.stat().st_size for path in sealed.glob("date=*/*.parquet")),
    }
    print(json.dumps(figures))


def write(directory: Path, names: list[str]) -> Path:
    """Write shared files with records of all these shards, and the table; return the tree."""
    files = OsFileSystem()
    logs = directory / "logs"
    logs.mkdir(parents=True)
    sources = []
    lsn = 0
    for shard_id, name in enumerate(names, 1):
        header = LogHeader(shard_id, 0, FIRST_TIME_US, name).encode()
        batches = bytearray()
        for first in range(0, RECORDS_OF_A_SHARD, RECORDS_OF_A_BATCH):
            at = len(batches)
            lsn += 1
            time_us = FIRST_TIME_US + lsn
            batches += encode_values(telemetry(shard_id + first, RECORDS_OF_A_BATCH), timestamp_us=time_us)
            stamp(batches, at, first, lsn, time_us)
        log = logs / f"{shard_id}.log"
        log.write_bytes(header + batches)
        end = len(header) + len(batches)
        sources.append(PartSource(str(log), name, shard_id, 0, RECORDS_OF_A_SHARD, len(header), end))
    sources.sort(key=lambda one: one.name.encode())
    sealed = directory / "sealed"
    placed = []
    for file_id, gathered in enumerate(_at_once(sources), FIRST_FILE_ID):
        for file in write_shared_files(files, SharedPlan(str(directory / "gathered"), file_id, gathered)).files:
            path = Path(shared_path(str(sealed), file.day, file_id))
            path.parent.mkdir(parents=True, exist_ok=True)
            Path(file.path).rename(path)
            placed.append((file.day, file_id))
    for source in sources:
        Path(source.log_path).unlink()
    update_table(files, TableRequest(str(sealed), lsn, tuple(placed)), DeltaLibrary(), time.time_ns() // 1_000_000)
    return sealed


def _at_once(sources: list[PartSource]) -> Iterator[tuple[PartSource, ...]]:
    """The sources in parts of as many bytes as the server gathers into one file."""
    chosen: list[PartSource] = []
    size_bytes = 0
    for source in sources:
        if chosen and size_bytes + source.end_position > MOST_BYTES:
            yield tuple(chosen)
            chosen, size_bytes = [], 0
        chosen.append(source)
        size_bytes += source.end_position
    yield tuple(chosen)


def _rates(spark: SparkSession, query: str, records: int) -> dict[str, list[float]]:
    """Records per second of a query of both, in pairs, after runs for initialisation and for Java's compiler."""
    rates: dict[str, list[float]] = {"sealed": [], "plain": []}
    for number in range(WARM_UP_RUNS + RUNS):
        for view, found in rates.items():
            begun_at = time.perf_counter()
            spark.sql(query.format(view=view)).collect()
            if number >= WARM_UP_RUNS:
                found.append(records / (time.perf_counter() - begun_at))
    return rates


def _bytes_read(spark: SparkSession) -> int:
    """Bytes that Spark's Java has read from files so far."""
    jvm: Any = spark._jvm  # noqa: SLF001 - Spark counts them, and shows them only there
    return sum(int(one.getBytesRead()) for one in jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics())


if __name__ == "__main__":
    main()
