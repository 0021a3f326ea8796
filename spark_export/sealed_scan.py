"""Sealed segments as an ordinary Spark table: the files that belong to it, and a data frame over them.

Spark's own Parquet reader scans the files in the JVM: without Python, with partitions pruned by shard or date and row
groups by their statistics. This module adds the names of shards and topics, and the selection of the files and rows
that count. Columns are those of the data source `journal`, and the UTC day of the append.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from shards.topics.topic_filters import is_filter, literal_prefix, pattern
from spark_export.errors import UnreadableError
from spark_export.file_access import FileTree
from spark_export.hadoop_files import HadoopFiles, glob_literal
from spark_export.sealed_files import SharedName, is_sealed_tree, parse_shared, require_present_form
from spark_export.table_versions import version_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS: Final = ("topic", "shard", "offset", "timestamp", "append_time", "key", "value", "headers", "tags")
"""The columns of the data source."""
TABLE_COLUMNS: Final = (*COLUMNS, "date")

_RECORD: Final = (
    "offset long, lsn long, timestamp timestamp, append_time timestamp, topic string, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, tags array<string>, expires_at timestamp, shard string"
)
_SHARED_FILE: Final = f"{_RECORD}, shard_id long, date date"
_FROM: Final = "__from"
_TO: Final = "__to"
_FILE, _LIVE_FILE, _LIVE_DATE, _LIVE_ID = "__file", "__live_file", "__live_date", "__live_id"
_DAY_US: Final = 86_400_000_000
_UTC: Final = ("UTC", "Etc/UTC", "Z")


OffsetRange: TypeAlias = tuple[int, int, int]
"""(shard id, first offset, offset after the last one)."""


@attrs.frozen
class SealedTree:
    """The sealed segments that count, at the time of the listing.

    Attributes:
        root: The directory with the ``date=...`` directories.
        shared: The files, and which of their rows count: all if None.
        other_shards: Ids of shards whose rows do not count.
        visible: Files that are known to have no shard and no topic whose name begins with ``$``.
    """

    root: str
    shared: Mapping[SharedName, tuple[OffsetRange, ...] | None] = attrs.field(factory=dict)
    other_shards: tuple[int, ...] = ()
    visible: frozenset[SharedName] = frozenset()


def list_tree(spark: SparkSession, path: str, version: int | None = None) -> SealedTree:
    """Find the sealed segments at a path.

    Args:
        spark: The session.
        path: A data directory or a tree of sealed segments.
        version: List the files of this version of the Delta table.

    Raises:
        UnreadableError: The path has nothing to read, or no such version.
    """
    files = HadoopFiles(spark, path)
    root = _root(files, path)
    if version is not None:
        root = f"{path.rstrip('/')}/sealed" if root is None else root
        found = version_files(FileTree(root), version)
        return SealedTree(root, dict.fromkeys(found.rows), visible=found.visible)
    if root is None:
        return SealedTree(path)
    paths = files.glob(f"{glob_literal(root)}/date=*/*.parquet")
    return SealedTree(root, dict.fromkeys(file for path in paths if (file := parse_shared(path)) is not None))


def scan(
    spark: SparkSession,
    tree: SealedTree,
    *,
    topics: Sequence[str] = ("#",),
    shards: Sequence[str] = ("#",),
    columns: Sequence[str] = TABLE_COLUMNS,
) -> DataFrame:
    """Return the records of a tree whose shard and topic match; see `spark_export.sealed_table`.

    Args:
        columns: A selection of `TABLE_COLUMNS`, ``lsn`` and ``expires_at``.

    Raises:
        UnreadableError: A segment is empty.
    """
    # Without a filter `#` they need conditions as well, and one scan is enough.
    visible = tree.visible if "#" in shards or "#" in topics else frozenset()
    frames = [
        *_matching_rows(spark, _some_files(tree, tree.shared.keys() & visible), shards, topics, is_visible=True),
        *_matching_rows(spark, _some_files(tree, tree.shared.keys() - visible), shards, topics, is_visible=False),
    ]
    if not frames:
        return with_date(spark.createDataFrame([], _RECORD)).select(*columns)
    return reduce(lambda one, other: one.unionByName(other), (frame.select(*columns) for frame in frames))


def with_date(frame: DataFrame) -> DataFrame:
    """The records with the UTC day of their append."""
    from pyspark.sql import functions

    # Spark turns a comparison of a cast into one of the time, which it finds in statistics. A cast is made in the zone
    # of the session; days since the epoch are right in every zone.
    if frame.sparkSession.conf.get("spark.sql.session.timeZone") in _UTC:
        day = "cast(append_time as date)"
    else:
        day = f"date_from_unix_date(cast(unix_micros(append_time) div {_DAY_US} as int))"
    return frame.withColumn("date", functions.expr(day))


def shared_frame(spark: SparkSession, root: str, files: Iterable[SharedName]) -> DataFrame:
    """All rows of shared files.

    Raises:
        UnreadableError: A file is empty.
    """
    frame = _frame(spark, [glob_literal(f"{root}/{file.path}") for file in files], root, _SHARED_FILE)
    for path in HadoopFiles(spark, root).empty_files(frame):
        raise UnreadableError(
            f"{path} is empty, it should hold records of many shards: put it back from a copy; `journal check` on the "
            "data directory tells which of them are missing"
        )
    return frame


def _some_files(tree: SealedTree, chosen: Iterable[SharedName]) -> SealedTree:
    """The tree with some of its files."""
    return attrs.evolve(tree, shared={file: tree.shared[file] for file in sorted(chosen)})


def _matching_rows(
    spark: SparkSession, tree: SealedTree, shards: Sequence[str], topics: Sequence[str], *, is_visible: bool
) -> Iterator[DataFrame]:
    """The rows that count and match.

    Where no name begins with ``$``, the filter `#` matches all, and needs no condition. Conditions on the names of each
    row take a quarter of the time of a query of few columns.
    """
    for frame in _rows_of_shared_files(spark, tree):
        for column, filters in (("shard", shards), ("topic", topics)):
            if not (is_visible and "#" in filters):
                frame = frame.where(matching(column, filters))
        yield frame


def _rows_of_shared_files(spark: SparkSession, tree: SealedTree) -> list[DataFrame]:
    """The rows that count: of files without other rows by one scan, without a condition on any row; of the others."""
    from pyspark.sql import functions

    frames = []
    if whole := [file for file, rows in tree.shared.items() if rows is None]:
        frame = shared_frame(spark, tree.root, whole)
        frames.append(frame.where(~frame["shard_id"].isin(*tree.other_shards)) if tree.other_shards else frame)
    if partial := {file: rows for file, rows in tree.shared.items() if rows is not None}:
        counts = functions.broadcast(_live_rows(spark, partial))
        frame = shared_frame(spark, tree.root, partial).withColumn(_FILE, functions.col("_metadata.file_name"))
        there = (
            (frame[_FILE] == counts[_LIVE_FILE])
            & (frame["date"] == counts[_LIVE_DATE])
            & (frame["shard_id"] == counts[_LIVE_ID])
            & (frame["offset"] >= counts[_FROM])
            & (frame["offset"] < counts[_TO])
        )
        frames.append(frame.join(counts, there, "left_semi").drop(_FILE))
    return frames


def _live_rows(spark: SparkSession, files: Mapping[SharedName, Sequence[OffsetRange]]) -> DataFrame:
    """A table of the rows that count in some files."""
    import pyarrow as pa

    ranges = [(file, one) for file, rows in files.items() for one in rows]
    ids, firsts, ends = (pa.array([one[at] for _, one in ranges], pa.int64()) for at in range(3))
    names = pa.array([file.path.rpartition("/")[2] for file, _ in ranges], pa.string())
    days = pa.array([file.day for file, _ in ranges], pa.int32()).cast(pa.date32())
    return spark.createDataFrame(
        pa.table({_LIVE_FILE: names, _LIVE_DATE: days, _LIVE_ID: ids, _FROM: firsts, _TO: ends})
    )


def matching(column: str, filters: Sequence[str]) -> Column:
    """A condition: the column's text matches at least one of some valid filters."""
    return reduce(or_, (_matching(column, one) for one in dict.fromkeys(filters)))


def _matching(column: str, topic_filter: str) -> Column:
    from pyspark.sql import functions

    text = functions.col(column)
    if not is_filter(topic_filter):
        return text == topic_filter
    if topic_filter == "#":
        return ~text.startswith("$")
    matches = text.rlike(rf"(?s)\A{pattern(topic_filter).pattern}\z")
    # Spark compares a prefix with the statistics, but a pattern with each row. `a/#` matches `a` too.
    prefix = literal_prefix(topic_filter).removesuffix("/")
    return text.startswith(prefix) & matches if prefix else matches


def _root(files: HadoopFiles, path: str) -> str | None:
    """The directory with those of the days, or None for a data directory without any."""
    path = path.rstrip("/") or "/"
    if not files.exists(path):
        raise UnreadableError(
            f"there is nothing at {path}: give the data directory of a journal server, or its directory `sealed`"
        )
    if files.exists(f"{path}/sealed"):
        require_present_form(files.names(f"{path}/sealed"), f"{path}/sealed")
        return f"{path}/sealed"
    if files.exists(f"{path}/FORMAT"):
        return None
    names = files.names(path)
    require_present_form(names, path)
    if not is_sealed_tree(names):
        raise UnreadableError(
            f"{path} is neither a data directory (it has no FORMAT) nor one of sealed segments (it has no date=...)"
        )
    return path


def _frame(spark: SparkSession, patterns: list[str], root: str, schema: str) -> DataFrame:
    reader = spark.read.schema(schema).option("basePath", root).option("pathGlobFilter", "*.parquet")
    # A file that is gone is an error whatever the session says: without its records the result would be wrong.
    reader = reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*patterns)
