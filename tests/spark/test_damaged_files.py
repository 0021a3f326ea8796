"""A damaged Parquet file: the error of a read names it, and everything else is read by the same session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from journal.check import check_directory
from shards.format.record import Record
from shards.parquet.schema import SHARED_SCHEMA
from shards.parquet.shared_reading import SharedReader
from shards.seams.os_file_system import OsFileSystem
from spark_export.errors import UnreadableError
from spark_export.sealed_table import read_sealed
from tests.spark.stores import append, convert, sealed_file

BROKEN, WHOLE = "größe/broken", "whole"
Damage = Callable[[bytes, int], bytes]


def flipped(content: bytes, at: int) -> bytes:
    at %= len(content)
    return content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :]


# Given the file and a place in a page of the values.
PAGES: dict[str, Damage] = {
    "a page": flipped,
    "the length of the footer": lambda content, _: flipped(content, -6),
    "the last byte": lambda content, _: flipped(content, -1),
    "cut off": lambda content, at: content[:at],
    "one byte left": lambda content, _: content[:1],
}
FOOTERS: dict[str, Damage] = {
    "the end of the footer": lambda content, _: flipped(content, -200),
    "the middle of the footer": lambda content, _: flipped(content, -1000),
}
EMPTY: dict[str, Damage] = {"empty": lambda content, _: b""}


ALL = {**PAGES, **FOOTERS, **EMPTY}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Shard `BROKEN` has sealed segments of 300 and 100 records, `WHOLE` one of 50."""
    data = tmp_path / "data"
    for shard, count in ((BROKEN, 300), (WHOLE, 50), (BROKEN, 100)):
        append(data, shard, [Record(b"%d;" % number * 90, key=b"k") for number in range(count)])
        convert(data, shard)
    return data


def damaged(data: Path, damage: Damage) -> Path:
    """Damage the first segment of `BROKEN`; return its path."""
    path = sealed_file(data, BROKEN)
    with SharedReader(OsFileSystem(), str(path)) as reader:
        values = reader.footer.row_group(0).column(SHARED_SCHEMA.get_field_index("value"))
        place = values.data_page_offset + values.total_compressed_size // 2
    path.write_bytes(damage(path.read_bytes(), place))
    return path


def source(spark: SparkSession, data: Path) -> DataFrame:
    return spark.read.format("journal").options(path=str(data), filterPushdown="true").load()


@pytest.mark.slow("runs Spark")
@pytest.mark.parametrize("damage", ALL.values(), ids=ALL)
def test_the_data_source_names_file_shard_and_offsets_and_reads_the_rest(
    spark: SparkSession, data: Path, damage: Damage
) -> None:
    path = damaged(data, damage)
    with pytest.raises(PySparkException) as caught:
        source(spark, data).collect()
    assert f"UnreadableError: shard '{BROKEN}', offsets 0 up to but not including 300: {path}" in str(caught.value)
    assert source(spark, data).where(f"shard = '{WHOLE}'").count() == 50
    assert source(spark, data).where(f"shard = '{BROKEN}' and offset >= 300").count() == 100
    assert str(path) in {found.path for found in check_directory(str(data)).damages}


@pytest.mark.slow("runs Spark")
@pytest.mark.parametrize("damage", PAGES.values(), ids=PAGES)
def test_sparks_own_reader_names_the_file_and_reads_other_shards(
    spark: SparkSession, data: Path, damage: Damage
) -> None:
    path = damaged(data, damage)
    for with_unsealed in (False, True):
        # Of what type it is depends on where in its Java Spark meets the damage.
        with pytest.raises(Exception, match="Encountered error while reading file") as caught:
            read_sealed(spark, str(data), with_unsealed=with_unsealed).collect()
        assert path.name in "".join(str(caught.value).splitlines()[:2])
        assert read_sealed(spark, str(data), shards=WHOLE, with_unsealed=with_unsealed).count() == 50


@pytest.mark.slow("runs Spark")
def test_an_empty_file_is_not_passed_over_in_silence(spark: SparkSession, data: Path) -> None:
    path = damaged(data, EMPTY["empty"])
    for with_unsealed in (False, True):
        with pytest.raises(UnreadableError) as caught:
            read_sealed(spark, str(data), with_unsealed=with_unsealed)
        for part in (str(path), "is empty"):
            assert part in str(caught.value)
        assert read_sealed(spark, str(data), shards=WHOLE, with_unsealed=with_unsealed).count() == 50
