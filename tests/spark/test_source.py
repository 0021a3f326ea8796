"""The data source `journal` in a real Spark session: found by its name, every field, filters, a server, damage."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import zipfile
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from broker_adapter import open_adapter
from shards.format.record import Record
from shards.model import Mode, ShardConfig
from spark_export.errors import UnreadableError
from spark_export.server_connection import connected
from tests.faults.processes import running
from tests.spark.stores import append, convert, numbered, places, sealed_file, trim

ROOT = Path(__file__).parents[2]
HUGE = bytes(range(256)) * (5 << 12)
# Those of the stores that the tests make: a server with a smaller journal than the last one cannot go on at once.
JOURNAL_SIZES = ("storage.journal_file_bytes=16 MiB", "storage.journal_budget_bytes=64 MiB")
FIELDS = [
    Record(
        b"\x00value\xff",
        key=b"k\xff\x00",
        topic="own/tüpic",
        timestamp_us=1_700_000_000_123_456,
        headers=(("h", b"1"), ("h", b""), ("ü", b"\xff")),
        tags=("red", "ü€𝄞"),
    ),
    Record(timestamp_us=1),
    Record(HUGE, timestamp_us=4_102_444_800_000_000),
    Record("日本".encode(), key=b"", tags=("",), headers=(("", b""),), timestamp_us=2),
]


def load(spark: SparkSession, **options: object) -> DataFrame:
    return spark.read.format("journal").options(**{name: str(value) for name, value in options.items()}).load()


def found(frame: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.shard, row.offset) for row in frame.select("shard", "offset").collect())


def test_every_field_comes_back_from_a_log_and_from_a_sealed_segment(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "data", "plant/ü", FIELDS[:2], FIELDS[2:])
    for _ in ("log", "sealed"):
        rows = load(spark, path=tmp_path / "data").orderBy("offset").collect()
        assert [row.shard for row in rows] == ["plant/ü"] * 4
        for number, (row, record) in enumerate(zip(rows, FIELDS, strict=True)):
            assert (row.offset, row.topic) == (number, record.topic or "plant/ü")
            assert (bytes(row.key), bytes(row.value)) == (record.key, record.value)
            assert tuple((header.key, bytes(header.value)) for header in row.headers) == record.headers
            assert tuple(row.tags) == record.tags
        times = (
            load(spark, path=tmp_path / "data").selectExpr("offset", "unix_micros(timestamp) AS us").orderBy("offset")
        )
        assert [row.us for row in times.collect()] == [record.timestamp_us for record in FIELDS]
        appended = load(spark, path=tmp_path / "data").selectExpr("max(append_time) AS at").collect()[0].at
        assert abs((datetime.now(UTC) - appended.astimezone(UTC)).total_seconds()) < 3_600
        convert(tmp_path / "data", "plant/ü")


def test_a_narrower_schema_reads_only_its_columns_in_its_order(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "data", "s", FIELDS[:2])
    reader = spark.read.format("journal").option("path", str(tmp_path / "data"))
    frame = reader.schema("tags ARRAY<STRING>, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, shard STRING").load()
    assert frame.columns == ["tags", "headers", "shard"]
    row = frame.collect()[0]
    assert (row.tags, row.headers[1].value, row.shard) == (["red", "ü€𝄞"], b"", "s")
    for schema, named in (("payload BINARY", "'payload'"), ("value STRING", "'value' as string, it is binary")):
        with pytest.raises(PySparkException, match=named):
            reader.schema(schema).load().collect()


def test_a_wrong_option_is_reported_when_the_source_is_loaded(spark: SparkSession, tmp_path: Path) -> None:
    for options, named in (({"path": tmp_path, "topic": "a"}, "unknown option 'topic'"), ({}, "'path'.*'server'")):
        with pytest.raises(PySparkException, match=named):
            load(spark, **options)


def test_an_empty_store_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "data", "s")
    assert load(spark, path=tmp_path / "data").count() == 0


@pytest.mark.parametrize("pushdown", [True, False])
def test_filters_give_the_same_rows_pushed_down_or_not(spark: SparkSession, tmp_path: Path, pushdown: bool) -> None:
    append(tmp_path / "data", "a", numbered(0, 40), [Record(b"own", topic="b", timestamp_us=41_000)])
    convert(tmp_path / "data", "a")
    append(tmp_path / "data", "a", numbered(41, 20))
    append(tmp_path / "data", "b", numbered(0, 10))
    one_frame = load(spark, path=tmp_path / "data")
    for condition, expected in (
        ("offset >= 38 AND offset < 43 AND shard = 'a'", places("a", range(38, 43))),
        ("topic = 'b'", [*places("a", range(40, 41)), *places("b", range(10))]),
        ("topic IN ('b', 'x') AND offset <= 3", places("b", range(4))),
        (
            "timestamp > timestamp_micros(60000) OR offset = 0",
            [*places("a", range(1)), *places("a", range(60, 61)), ("b", 0)],
        ),
        ("timestamp >= timestamp_micros(59000)", places("a", range(58, 61))),
        ("append_time < timestamp'2001-01-01'", []),
        ("shard > 'a' AND key IS NOT NULL AND value = CAST('7' AS BINARY)", places("b", range(7, 8))),
    ):
        # Spark remembers what it pushed down for as long as a loaded frame lives: then each query loads its own.
        frame = load(spark, path=tmp_path / "data", filterPushdown="true") if pushdown else one_frame
        assert found(frame.where(condition)) == expected, condition
    if pushdown:
        chosen = load(spark, path=tmp_path / "data", filterPushdown="true").where("offset < 2 AND shard = 'b'")
        with redirect_stdout(StringIO()) as plan:
            chosen.explain()
        assert not re.search(r"\bFilter \(", plan.getvalue()), "the source sees to all of it"


def test_a_conversion_between_planning_and_reading_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    for shard in ("a", "b"):
        append(tmp_path / "data", shard, numbered(0, 30), numbered(30, 30))
    rows = load(spark, path=tmp_path / "data").select("shard", "offset").rdd
    assert rows.getNumPartitions() >= 1  # this plans the query: from here on it knows only log files
    append(tmp_path / "data", "a", numbered(60, 5))
    convert(tmp_path / "data", "a", "b")
    assert not list((tmp_path / "data" / "log").rglob("*.log"))
    assert sorted(map(tuple, rows.collect())) == [*places("a", range(60)), *places("b", range(60))]


def test_damage_is_reported_with_file_shard_and_offsets_and_other_shards_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    append(data, "broken", numbered(0, 50))
    append(data, "whole", numbered(0, 50))
    convert(data, "broken", "whole")
    path = sealed_file(data, "broken")
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    with pytest.raises(PySparkException) as caught:
        load(spark, path=data).count()
    for part in (str(path), "'broken'", "offsets 0 up to but not including 50", "checksum"):
        assert part in str(caught.value)
    assert load(spark, path=data, topics="whole").count() == 50


def test_what_was_trimmed_after_planning_is_an_error_unless_that_is_allowed(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "data", "s", numbered(0, 30))
    convert(tmp_path / "data", "s")
    append(tmp_path / "data", "s", numbered(30, 10))
    strict = load(spark, path=tmp_path / "data").select("shard", "offset").rdd
    lenient = load(spark, path=tmp_path / "data", failOnDataLoss="false").select("shard", "offset").rdd
    assert min(strict.getNumPartitions(), lenient.getNumPartitions()) >= 1
    trim(tmp_path / "data", "s", 35)
    assert sorted(map(tuple, lenient.collect())) == places("s", range(30, 40))
    with pytest.raises(Exception, match=r"'s'.*offsets 0 up to but not including 30.*failOnDataLoss"):
        strict.collect()


def test_a_server_and_the_directory_that_it_uses_show_what_is_in_memory_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    append(data, "file", numbered(0, 100))
    with running(data, *JOURNAL_SIZES) as server:
        url = f"journal://127.0.0.1:{server.ports['tcp']}"

        async def work() -> None:
            async with open_adapter(url) as adapter:
                await adapter.create_shard("memory", ShardConfig(mode=Mode.MEMORY))
                for number in range(5):
                    await adapter.append("memory", numbered(number * 10, 10))
                    await adapter.append("file", numbered(100 + number * 10, 10))
                await adapter.set_mode("memory", Mode.FILE)
                await adapter.append("memory", numbered(50, 10))
                await adapter.convert("file")
                await adapter.append("file", numbered(150, 10))

        trio.run(work)
        expected = [*places("file", range(160)), *places("memory", range(60))]
        for options in ({"server": url}, {"path": data}, {"path": data, "server": url}):
            assert found(load(spark, **options)) == expected, options
        chosen = load(spark, server=url, startingTimestamp=60, topics="memory", minPartitions=3)
        assert found(chosen) == places("memory", range(59, 60))
    assert found(load(spark, path=data, topics="file")) == places("file", range(160))


async def test_a_server_that_does_not_answer_is_named() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = f"journal://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreadableError, match=f"no journal server answers at {server} within 0.2 s"):
            async with connected(server, patience_s=0.2):
                raise AssertionError("the server answered")


def test_a_wheel_holds_the_module_that_spark_looks_for(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert {"pyspark_journal.py", "spark_export/source.py"} <= set(names)


def test_a_process_of_spark_loads_what_connects_to_a_server_only_when_it_reads_from_one() -> None:
    """For a query Spark starts four processes that load the data source one after the other."""
    program = "import sys, spark_export.source; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "spark_export.reading" in loaded
    assert not {"trio", "broker_adapter", "spark_export.server_connection"} & set(loaded)
