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
from journal.settings.server import ConversionConfig
from shards.history import HistoryGap
from shards.model import SegmentKind
from spark_export import read_sealed
from spark_export.errors import DataLossError
from spark_export.export import ExportOptions, run_export
from spark_export.history import Origin, Places, Reached, plan_history, take_history
from spark_export.read_history import ReadHistory
from spark_export.sealed_files import SharedName
from spark_export.sealed_scan import SealedTree
from spark_export.snapshot import PlaceInFile, SegmentRange, ShardSnapshot, Snapshot, Store
from tests.spark.sealed_trees import values

CONFIG = attrs.evolve(BROKER_CONFIG, conversion=ConversionConfig(enabled=True, max_age_s=1))
PARQUET, LOG = SegmentKind.PARQUET, SegmentKind.LOG


def with_store(directory: Path, work: Callable[[StorageAdapter], Awaitable[None]]) -> None:
    """Open a data directory, do something, and leave it closed."""

    async def main() -> None:
        async with open_embedded(f"embedded:{directory}", CONFIG) as store:
            await work(store)

    trio.run(main)


def append(directory: Path, shard: str, first: int, count: int, *, convert: bool = False) -> None:
    async def work(store: StorageAdapter) -> None:
        await store.create_shard(shard, exist_ok=True)
        await store.append(shard, values(count, first=first))
        if convert:
            await store.convert(shard)

    with_store(directory, work)


def places(frame: DataFrame) -> list[tuple[str, int, bytes]]:
    rows = frame.select("shard", "offset", "value").collect()
    return sorted((row.shard, row.offset, bytes(row.value)) for row in rows)


def expected(**counts: int) -> list[tuple[str, int, bytes]]:
    return [(shard, n, values(1, first=n)[0].value) for shard, count in counts.items() for n in range(count)]


def test_sealed_and_unsealed_records_come_once_each(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, "a", 0, 30, convert=True)
    append(tmp_path, "a", 30, 20, convert=True)
    append(tmp_path, "a", 50, 10)
    append(tmp_path, "b", 0, 5)
    assert places(read_sealed(spark, str(tmp_path))) == expected(a=50)
    whole = read_sealed(spark, str(tmp_path), with_unsealed=True)
    assert places(whole) == expected(a=60, b=5)
    assert places(read_sealed(spark, str(tmp_path), topics="b", with_unsealed=True)) == expected(b=5)
    # What is sealed, and what is appended, after the table was made changes nothing of it.
    append(tmp_path, "a", 60, 10, convert=True)
    append(tmp_path, "c", 0, 1)
    assert places(whole) == expected(a=60, b=5)


def test_an_export_takes_what_is_not_sealed_too_and_once(spark: SparkSession, tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    options = ExportOptions(path=str(data), target=str(target), partition_by=("topic",))
    append(data, "a", 0, 30, convert=True)
    append(data, "a", 30, 10)
    assert run_export(spark, options).records == 40
    append(data, "a", 40, 10, convert=True)
    append(data, "a", 50, 1)
    assert run_export(spark, options).records == 11
    assert places(spark.read.parquet(str(target))) == expected(a=51)


def shard(*segments: SegmentRange, start: int = 0) -> ShardSnapshot:
    return ShardSnapshot("a", 7, start, segments[-1].next_offset, segments)


def tree(*bases: int) -> SealedTree:
    """A tree with the files of the segments that begin at these offsets."""
    return SealedTree("/sealed", dict.fromkeys(SharedName(0, base) for base in bases))


def segment(kind: SegmentKind, base: int, end: int) -> SegmentRange:
    return SegmentRange(kind, base, end, 100, PlaceInFile(SharedName(0, base), 0) if kind is PARQUET else None)


@pytest.mark.parametrize(
    ("snapshot", "listed", "since", "ranges"),
    [
        # (first, sealed end, next, parts)
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15)), tree(0), None, (0, 10, 15, 1)),
        # Sealed between the snapshot and the listing.
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15)), tree(0, 10), None, (0, 10, 15, 1)),
        # Only what the shard begins with is scanned.
        (shard(segment(LOG, 0, 10), segment(PARQUET, 10, 15)), tree(10), None, (0, 0, 15, 0)),
        # Trimmed between the snapshot and the listing: the data source says so.
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree(10), None, (0, 0, 15, 0)),
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree(0, 10), None, (0, 15, 15, 2)),
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree(0, 10), 10, (10, 15, 15, 1)),
        (shard(segment(PARQUET, 0, 10), segment(PARQUET, 10, 15)), tree(0, 10), 7, (7, 15, 15, 2)),
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15)), tree(0), 12, (12, 12, 15, 0)),
        (shard(segment(PARQUET, 0, 10), segment(LOG, 10, 15), start=4), tree(0), None, (4, 10, 15, 1)),
        # Replaced between the snapshot and the listing.
        (shard(segment(PARQUET, 0, 10)), tree(6), None, (0, 0, 10, 0)),
        (shard(segment(PARQUET, 0, 10)), tree(0), 10, None),
    ],
)
def test_a_snapshot_says_what_is_scanned_and_what_the_source_reads(
    snapshot: ShardSnapshot, listed: SealedTree, since: int | None, ranges: tuple[int, int, int, int] | None
) -> None:
    places = None if since is None else Places({"a": Reached(7, since)})
    history = plan_history(Snapshot(Store(), (snapshot,)), listed, Origin("/data"), places)
    found = [(one.first_offset, one.sealed_end, one.next_offset, len(one.parts)) for one in history.ranges]
    assert found == ([] if ranges is None else [ranges])
    assert history.places == Places({"a": Reached(7, snapshot.next_offset)})
    assert not history.passes_over_loss


LIVE = Store(server="journal://127.0.0.1:7420")
RESTORES = (HistoryGap(88, 1 << 40),)
LOSSES = {
    # What is there, how far it was read, what is told, where it goes on.
    "trimmed": (shard(segment(LOG, 0, 5), start=4), Reached(7, 2), "from offset 2 up to 4 were trimmed", 4),
    "set back": (shard(segment(LOG, 0, 5)), Reached(7, 9), "ends at offset 5 but was read up to 9", 5),
    "created again": (shard(segment(LOG, 0, 5)), Reached(6, 3), "with id 6 was read up to offset 3 and is gone", 0),
    "restored": (
        attrs.evolve(shard(segment(LOG, 0, 9)), changed_offset=4),
        Reached(7, 6),
        "from offset 4 on it holds other records",
        4,
    ),
    "restored, with nothing new": (
        attrs.evolve(shard(segment(LOG, 0, 4)), changed_offset=4),
        Reached(7, 6),
        "from offset 4 on it holds other records",
        4,
    ),
    "new and trimmed": (shard(segment(LOG, 0, 5), start=4), None, "created after the last run.* below offset 4", 4),
}


@pytest.mark.parametrize(("there", "reached", "told", "goes_on"), LOSSES.values(), ids=LOSSES)
def test_an_export_passed_over_lost_records_although_that_was_to_be_an_error(
    there: ShardSnapshot, reached: Reached | None, told: str, goes_on: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A shard that was deleted and created again was exported as if it were the one before, without a word."""
    snapshot = Snapshot(LIVE, (there,))
    since = Places({} if reached is None else {"a": reached}, {"gone": Reached(1, 1)})
    with pytest.raises(DataLossError, match=f"shard 'a'.*{told}.*turn failing on data loss off"):
        plan_history(snapshot, None, Origin("/data"), since)
    passed = plan_history(snapshot, None, Origin("/data", fail_on_data_loss=False), since)
    assert "shard 'a'" in caplog.text
    assert [one.first_offset for one in passed.ranges] == ([goes_on] if goes_on < there.next_offset else [])
    assert passed.places.reached == {"a": Reached(7, there.next_offset)}
    assert passed.passes_over_loss
    # It was passed over, so it is no error a second time.
    compared = Snapshot(LIVE, (attrs.evolve(there, changed_offset=None),))
    assert not plan_history(compared, None, Origin("/data"), passed.places).passes_over_loss


def test_a_shard_that_was_missing_at_a_restore_is_compared_when_it_is_back() -> None:
    """The history that its place belongs to was forgotten, so it went on where others had been read."""
    store = attrs.evolve(LIVE, restores=RESTORES)
    lenient = Origin("/data", fail_on_data_loss=False)
    passed = plan_history(Snapshot(store, ()), None, lenient, Places({"a": Reached(7, 5)}))
    assert passed.places == Places({}, {"a": Reached(7, 5, 88)}, RESTORES)
    again = plan_history(Snapshot(store, ()), None, lenient, passed.places)
    assert again.places == passed.places
    assert again.places.read_history.common_lsn("a", RESTORES) == 88
    assert again.places.read_history.common_lsn("b", RESTORES) is None
    # Sealed segments alone tell of no restores, and forget none.
    tree_alone = Snapshot(Store(sealed="/sealed"), (shard(segment(PARQUET, 0, 5)),))
    assert plan_history(tree_alone, None, lenient, again.places).places == Places(
        {"a": Reached(7, 5, 88)}, {}, RESTORES
    )
    back = Snapshot(store, (shard(segment(LOG, 0, 5)),), again.places.read_history)
    assert plan_history(back, None, lenient, again.places).places == Places({"a": Reached(7, 5)}, {}, RESTORES)


def test_what_was_read_is_compared_with_every_restore_that_only_one_history_has() -> None:
    first, second, other = HistoryGap(88, 1 << 40), HistoryGap(1 << 41, 1 << 42), HistoryGap(90, 1 << 43)
    read = ReadHistory((first, second))
    assert read.common_lsn("a", (first, second)) is None
    assert read.common_lsn("a", (first,)) == 1 << 41
    assert read.common_lsn("a", (first, other)) == 90
    assert ReadHistory((first,), {"a": 40}).common_lsn("a", (first, other)) == 40


def test_a_shard_that_is_new_to_a_tree_may_begin_with_records_that_are_not_sealed_there() -> None:
    snapshot = Snapshot(Store(sealed="/sealed"), (shard(segment(PARQUET, 4, 5), start=4),))
    assert [one.first_offset for one in plan_history(snapshot, tree(), Origin("/data"), Places()).ranges] == [4]


def test_an_export_lost_the_place_of_a_shard_that_was_missing_for_one_run() -> None:
    """All of its records came a second time when it was there again."""
    empty, whole = Snapshot(LIVE, ()), Snapshot(LIVE, (shard(segment(LOG, 0, 9)),))
    since, strict, lenient = Places({"a": Reached(7, 5)}), Origin("/data"), Origin("/data", fail_on_data_loss=False)
    with pytest.raises(DataLossError, match=r"shard 'a' \(id 7\), .* read up to offset 5, is not there any more"):
        plan_history(empty, None, strict, since)
    passed = plan_history(empty, None, lenient, since)
    assert passed.passes_over_loss
    assert passed.places == Places({}, {"a": Reached(7, 5)})
    assert plan_history(empty, None, strict, passed.places).places == passed.places
    back = plan_history(whole, None, strict, passed.places)
    assert [one.first_offset for one in back.ranges] == [5]
    assert back.places == Places({"a": Reached(7, 9)})


def test_a_shard_that_takes_the_name_of_a_missing_one_is_read_from_its_start() -> None:
    snapshot = Snapshot(LIVE, (shard(segment(LOG, 0, 9)),))
    history = plan_history(snapshot, None, Origin("/data"), Places({}, {"a": Reached(6, 5)}))
    assert [one.first_offset for one in history.ranges] == [0]
    assert history.places == Places({"a": Reached(7, 9)})


def test_a_path_is_listed_after_the_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, "a", 0, 3, convert=True)
    history = take_history(spark, Origin(str(tmp_path)))
    assert [(one.sealed_end, one.next_offset) for one in history.ranges] == [(3, 3)]
