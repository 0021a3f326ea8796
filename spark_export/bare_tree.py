"""The rows that count in a tree of sealed segments alone, without the views of a data directory. Spark reads them.

A copy of the files may have old and new ones of a rewriting. Which rows were trimmed, and which shards deleted, is not
in the files (docs/formats.md, "Rules for direct readers of shared files").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from shards.model import SegmentKind
from spark_export.distinct_ranges import distinct
from spark_export.sealed_files import SharedName
from spark_export.sealed_scan import OffsetRange, SealedTree, matching, shared_frame
from spark_export.shared_files import Run
from spark_export.snapshot import PlaceInFile, SegmentRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counting_once(spark: SparkSession, tree: SealedTree, shards: Sequence[str]) -> SealedTree:
    """Choose the rows of a tree without views: each offset once, and of shards of the same name the newest.

    It reads the columns shard, shard_id and offset of all shared files that have these shards.

    Args:
        shards: Filters of the shards that are wanted.

    Raises:
        UnreadableError: A file is empty.
    """
    runs: dict[str, dict[int, list[SegmentRange]]] = defaultdict(lambda: defaultdict(list))
    known: dict[SharedName, int] = defaultdict(int)
    for run in _runs(spark, tree, shards):
        runs[run.shard][run.shard_id].append(run.rows)
        assert run.rows.place is not None  # runs are of shared files
        known[run.rows.place.file] += run.rows.next_offset - run.rows.base_offset
    counting: dict[SharedName, list[OffsetRange]] = defaultdict(list)
    for by_id in runs.values():
        shard_id = max(by_id)
        for rows in distinct(by_id[shard_id]):
            assert rows.place is not None  # it is in a shared file
            counting[rows.place.file].append((shard_id, rows.base_offset, rows.next_offset))
    shared = {
        file: None if sum(end - first for _, first, end in rows) == known[file] else tuple(rows)
        for file, rows in counting.items()
    }
    return attrs.evolve(tree, shared=shared)


def of_table(spark: SparkSession, tree: SealedTree, shards: Sequence[str]) -> SealedTree:
    """Choose the rows of a tree whose shared files are those of a version of the Delta table.

    A version has each record once. Of several shards of the same name the newest counts. It reads the columns shard and
    shard_id.

    Args:
        spark: The session.
        tree: The tree.
        shards: Filters of the shards that are wanted.

    Raises:
        UnreadableError: A file is empty.
    """
    from pyspark.sql import functions

    if not tree.shared:
        return tree
    frame = shared_frame(spark, tree.root, tree.shared).where(matching("shard", shards))
    found = (
        frame.select("shard", "shard_id")
        .distinct()
        .groupBy("shard")
        .agg(functions.collect_list("shard_id").alias("ids"))
    )
    several = found.where("size(ids) > 1").select("ids").collect()
    return attrs.evolve(
        tree, other_shards=tuple(sorted(one for row in several for one in set(row.ids) - {max(row.ids)}))
    )


def _runs(spark: SparkSession, tree: SealedTree, shards: Sequence[str]) -> Iterator[Run]:
    """What rows of which shards are in the shared files of a tree."""
    from pyspark.sql import functions

    frame = shared_frame(spark, tree.root, tree.shared).where(matching("shard", shards))
    rows = frame.select("date", "shard", "shard_id", "offset", "_metadata.file_name", "_metadata.row_index")
    # In a run, offset and row increase together.
    rows = rows.withColumn("before", functions.expr("offset - row_index"))
    runs = rows.groupBy("date", "file_name", "shard", "shard_id", "before").agg(
        functions.min("offset").alias("first"), functions.max("offset").alias("last")
    )
    for batch in runs.toArrow().to_batches():
        days = batch.column("date").cast("int32")
        columns = (
            days,
            *(batch.column(name) for name in ("file_name", "shard", "shard_id", "before", "first", "last")),
        )
        for day, name, shard, shard_id, before, first, last in zip(*(one.to_pylist() for one in columns), strict=True):
            place = PlaceInFile(SharedName(day, int(name[:16], 16)), first - before)
            yield Run(shard, shard_id, SegmentRange(SegmentKind.PARQUET, first, last + 1, 0, place))
