"""Sealed and unsealed records as one table: nothing is missing, nothing comes twice, whatever is sealed meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio
from pyspark.sql import DataFrame, SparkSession

from broker_adapter import StorageAdapter
from broker_adapter.engines.embedded import BROKER_CONFIG, open_embedded
from journal.config import SealingConfig
from shards.model import SegmentKind
from shards.names import directory_name
from spark_export import read_sealed
from spark_export.errors import DataLossError
from spark_export.export import ExportOptions, run_export
from spark_export.history import Origin, Reached, plan_history, take_history
from spark_export.sealed_files import SealedName
from spark_export.sealed_scan import SealedTree
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot, Store
from tests.spark.sealed_trees import values

CONFIG = attrs.evolve(BROKER_CONFIG, sealing=SealingConfig(enabled=True, min_bytes=0))
PARQUET, LOG = SegmentKind.PARQUET, SegmentKind.LOG


def with_store(directory: Path, work: Callable[[StorageAdapter], Awaitable[None]]) -> None:
    """Open a data directory, do something, and leave it closed."""

    async def main() -> None:
        async with open_embedded(f"embedded:{directory}", CONFIG) as store:
            await work(store)

    trio.run(main)


def append(directory: Path, shard: str, first: int, count: int, *, seal: bool = False) -> None:
    async def work(store: StorageAdapter) -> None:
        await store.create_shard(shard, exist_ok=True)
        await store.append(shard, values(count, first=first))
        if seal:
            await store.seal(shard, wait=True)

    with_store(directory, work)


def places(frame: DataFrame) -> list[tuple[str, int, bytes]]:
    rows = frame.select("shard", "offset", "value").collect()
    return sorted((row.shard, row.offset, bytes(row.value)) for row in rows)


def expected(**counts: int) -> list[tuple[str, int, bytes]]:
    return [(shard, n, values(1, first=n)[0].value) for shard, count in counts.items() for n in range(count)]


def test_sealed_and_unsealed_records_come_once_each(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, "a", 0, 30, seal=True)
    append(tmp_path, "a", 30, 20, seal=True)
    append(tmp_path, "a", 50, 10)
    append(tmp_path, "b", 0, 5)
    assert places(read_sealed(spark, str(tmp_path))) == expected(a=50)
    whole = read_sealed(spark, str(tmp_path), with_unsealed=True)
    assert places(whole) == expected(a=60, b=5)
    assert places(read_sealed(spark, str(tmp_path), topics="b", with_unsealed=True)) == expected(b=5)
    # What is sealed, and what is appended, after the table was made changes nothing of it.
    append(tmp_path, "a", 60, 10, seal=True)
    append(tmp_path, "c", 0, 1)
    assert places(whole) == expected(a=60, b=5)


def test_an_export_takes_what_is_not_sealed_too_and_once(spark: SparkSession, tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    options = ExportOptions(path=str(data), target=str(target), partition_by=("topic",))
    append(data, "a", 0, 30, seal=True)
    append(data, "a", 30, 10)
    assert run_export(spark, options).records == 40
    append(data, "a", 40, 10, seal=True)
    append(data, "a", 50, 1)
    assert run_export(spark, options).records == 11
    assert places(spark.read.parquet(str(target))) == expected(a=51)


def shard(*segments: SegmentRange, start: int = 0) -> ShardSnapshot:
    return ShardSnapshot("a", 7, start, segments[-1].next_offset, segments)


def tree(*ranges: tuple[int, int], shard_id: int = 7) -> SealedTree:
    directory = directory_name("a")
    files = tuple(SealedName(directory, base, end, shard_id, f"{base}-{end}-{shard_id}") for base, end in ranges)
    return SealedTree("/sealed", files, {}, {directory: "a"})


def segment(kind: SegmentKind, base: int, end: int) -> SegmentRange:
    return SegmentRange(kind, base, end, 100)


@pytest.mark.parametrize(
    ("snapshot", "listed", "since", "ranges"),
    [
        # (first, sealed end, next, files)
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15)), tree((0, 10)), None, (0, 10, 15, 1)),
        # Sealed between the snapshot and the listing.
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15)), tree((0, 10), (10, 15)), None, (0, 10, 15, 1)),
        # Only what the shard begins with is scanned.
        (shard(segment(LOG, 0, 10), segment(PARQUET, 10, 15)), tree((10, 15)), None, (0, 0, 15, 0)),
        # Trimmed between the snapshot and the listing: the data source says so.
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree((10, 15)), None, (0, 0, 15, 0)),
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree((0, 10), (10, 15)), None, (0, 15, 15, 2)),
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree((0, 10), (10, 15)), 10, (10, 15, 15, 1)),
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree((0, 10), (10, 15)), 7, (7, 15, 15, 2)),
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15)), tree((0, 10)), 12, (12, 12, 15, 0)),
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15), start=4), tree((0, 10)), None, (4, 10, 15, 1)),
        # Files of another shard that had the name.
        (shard(segment(PARQUET, 0, 10)), tree((0, 10), shard_id=6), None, (0, 0, 10, 0)),
        (shard(segment(PARQUET, 0, 10)), tree((0, 10)), 10, None),
    ],
)
def test_a_snapshot_says_what_is_scanned_and_what_the_source_reads(
    snapshot: ShardSnapshot, listed: SealedTree, since: int | None, ranges: tuple[int, int, int, int] | None
) -> None:
    reached = {} if since is None else {"a": Reached(7, since)}
    history = plan_history(Snapshot(Store(), (snapshot,)), listed, Origin("/data"), reached)
    found = [(one.first_offset, one.sealed_end, one.next_offset, len(one.files)) for one in history.ranges]
    assert found == ([] if ranges is None else [ranges])
    assert history.reached == {"a": Reached(7, snapshot.next_offset)}


def test_a_shard_made_anew_is_read_from_its_start() -> None:
    history = plan_history(
        Snapshot(Store(), (shard(segment(LOG, 0, 5)),)), None, Origin("/data"), {"a": Reached(6, 99)}
    )
    assert [one.first_offset for one in history.ranges] == [0]


@pytest.mark.parametrize(("reached", "message"), [(2, "from offset 2 up to 4 were trimmed"), (9, "was read up to 9")])
def test_a_position_that_is_not_in_the_shard_is_an_error_unless_passed_over(reached: int, message: str) -> None:
    snapshot = Snapshot(Store(), (shard(segment(LOG, 0, 5), start=4),))
    with pytest.raises(DataLossError, match=message):
        plan_history(snapshot, None, Origin("/data"), {"a": Reached(7, reached)})
    passed = plan_history(snapshot, None, Origin("/data", fail_on_data_loss=False), {"a": Reached(7, reached)})
    assert [one.first_offset for one in passed.ranges] == ([4] if reached == 2 else [])


def test_a_path_is_listed_after_the_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, "a", 0, 3, seal=True)
    history = take_history(spark, Origin(str(tmp_path)))
    assert [(one.sealed_end, one.next_offset) for one in history.ranges] == [(3, 3)]
