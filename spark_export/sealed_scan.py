"""Sealed segments as an ordinary Spark table: the files that belong to it, and a data frame over them.

Spark's own Parquet reader scans the files in the JVM: without Python, with partitions pruned by shard or date and row
groups by their statistics. This module adds the names of shards and topics, and the selection of the files and rows
that count. Columns are those of the data source `journal`, and the UTC day of the append.

Segments have files of their own, or are in files shared with other shards; one data frame has both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from shards.topics.names import shard_name
from shards.topics.topic_filters import is_filter, literal_prefix, matches, pattern
from spark_export.errors import UnreadableError
from spark_export.file_access import FileTree
from spark_export.hadoop_files import HadoopFiles, glob_literal
from spark_export.sealed_files import (
    DATE_PREFIX,
    SealedName,
    SharedName,
    counted,
    parse_file,
    parse_mark,
    parse_shared,
    partition_value,
)
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
_OWN_FILE: Final = _RECORD
_SHARED_FILE: Final = f"{_RECORD}, shard_id long, date date"
_DIRECTORY: Final = "__directory"
_FROM: Final = "__from"
_TO: Final = "__to"
_FILE, _LIVE_FILE, _LIVE_DATE, _LIVE_ID = "__file", "__live_file", "__live_date", "__live_id"
_DAY_US: Final = 86_400_000_000
_UTC: Final = ("UTC", "Etc/UTC", "Z")
_MOST_PATHS: Final = 1000
"""Up to this many files are named to Spark one by one; otherwise it lists the tree, and other files are dropped."""


OffsetRange: TypeAlias = tuple[int, int, int]
"""(shard id, first offset, offset after the last one)."""


@attrs.frozen
class SealedTree:
    """The sealed segments that count, at the time of the listing.

    Attributes:
        root: The directory with the ``shard=...`` and ``date=...`` directories.
        files: The segments with files of their own, by directory and offset.
        starts: By directory: first offset that was not trimmed, if that is not the first one in the files.
        names: By directory: name of the shard.
        other_files: Names of files that Spark would find there and that do not count.
        shared: Shared files, and which of their rows count: all if None.
        empty_files: Paths of segments without bytes: they are damaged, but Spark would skip them without an error.
        listed: Spark's table of all files there; creating it takes long for very many directories.
        other_shards: Ids of shards whose rows in the shared files do not count.
    """

    root: str
    files: tuple[SealedName, ...]
    starts: Mapping[str, int]
    names: Mapping[str, str]
    other_files: tuple[str, ...] = ()
    shared: Mapping[SharedName, tuple[OffsetRange, ...] | None] = attrs.field(factory=dict)
    empty_files: tuple[str, ...] = ()
    listed: DataFrame | None = attrs.field(default=None, eq=False, repr=False)
    other_shards: tuple[int, ...] = ()


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
        return SealedTree(root, (), {}, {}, shared=dict.fromkeys(version_files(FileTree(root), version).rows))
    if root is None:
        return SealedTree(path, (), {}, {})
    literal = glob_literal(root)
    shared = [name for name in map(parse_shared, files.glob(f"{literal}/date=*/*.parquet")) if name is not None]
    # Spark refuses a table whose directories have partitions by different columns.
    own = f"{literal}/shard=*" if shared else literal
    frame = _frame(spark, [own], root, _OWN_FILE) if not shared or files.has(own) else None
    listed = files.input_files(frame) if frame is not None else ()
    found = [name for name in map(parse_file, listed) if name is not None]
    starts = {
        mark: _start(files, path)
        for path in files.glob(f"{literal}/shard=*/_start-*")
        if (mark := parse_mark(path)) is not None
    }
    kept = counted(found, starts)
    names = {}
    for file in kept:
        if file.directory not in names:
            name = shard_name(file.directory)
            names[file.directory] = _name_in(files, f"{root}/{file.directory}/{file.file}") if name is None else name
    return SealedTree(
        root,
        tuple(kept),
        {
            file.directory: start
            for file in kept
            if (start := starts.get((file.directory, file.shard_id), 0)) > file.base_offset
        },
        names,
        tuple({file.file for file in found}.difference(file.file for file in kept)),
        dict.fromkeys(shared),
        tuple(files.empty_files(frame)) if frame is not None else (),
        frame,
    )


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
    frames = []
    if tree.files:
        frames += _rows_of_own_files(spark, tree, shards, topics)
    if tree.shared:
        frames += [
            frame.where(matching("shard", shards)).where(matching("topic", topics))
            for frame in _rows_of_shared_files(spark, tree)
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


def _rows_of_own_files(
    spark: SparkSession, tree: SealedTree, shards: Sequence[str], topics: Sequence[str]
) -> list[DataFrame]:
    from pyspark.sql import functions

    _require_whole(tree, shards)
    frame = _chosen(spark, tree)
    if tree.starts:
        marks = spark.createDataFrame(
            [(partition_value(directory), start) for directory, start in tree.starts.items()],
            f"{_DIRECTORY} string, {_FROM} long",
        )
        frame = frame.join(functions.broadcast(marks), frame["shard"] == marks[_DIRECTORY], "left")
        frame = frame.where(f"offset >= coalesce({_FROM}, 0)").drop(_DIRECTORY, _FROM)
    frame = with_date(frame.withColumn("shard", _shown_name(tree)).where(matching("shard", shards)))
    # Two scans instead of one with a condition on both columns: so a filter on the topic prunes directories where the
    # topic is the shard's name, and row groups where records have topics of their own.
    plain = frame.where("topic = ''").withColumn("topic", functions.col("shard"))
    own = frame.where("topic <> ''")
    return [each.where(matching("topic", topics)) for each in (plain, own)]


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


def _require_whole(tree: SealedTree, shards: Sequence[str]) -> None:
    """Refuse empty files among those that are to be read."""
    counted_files = {f"{file.directory}/{file.file}": file for file in tree.files}
    for path in tree.empty_files:
        file = counted_files.get("/".join(path.rsplit("/", 2)[1:]))
        if file is not None and any(matches(wanted, tree.names[file.directory]) for wanted in shards):
            raise UnreadableError(
                f"{path} is empty, it should hold offsets {file.base_offset} up to but not including "
                f"{file.next_offset} of shard {tree.names[file.directory]!r}: put it back from a copy, or leave that "
                "shard out by the filters for shards"
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
    """The directory with the shards' directories, or None for a data directory without any."""
    path = path.rstrip("/") or "/"
    if not files.exists(path):
        raise UnreadableError(
            f"there is nothing at {path}: give the data directory of a journal server, or its directory `sealed`"
        )
    if files.exists(f"{path}/sealed"):
        return f"{path}/sealed"
    if files.exists(f"{path}/FORMAT"):
        return None
    others = [name for name in files.names(path) if not name.startswith((".", "shard=", DATE_PREFIX))]
    if others and not any(files.has(f"{glob_literal(path)}/{kind}*") for kind in ("shard=", DATE_PREFIX)):
        raise UnreadableError(
            f"{path} is neither a data directory (it has no FORMAT) nor one of sealed segments (it has no shard=... or "
            "date=...)"
        )
    return path


def _frame(spark: SparkSession, patterns: list[str], root: str, schema: str) -> DataFrame:
    reader = spark.read.schema(schema).option("basePath", root).option("pathGlobFilter", "*.parquet")
    # A file that is gone is an error whatever the session says: without its records the result would be wrong.
    reader = reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*patterns)


def _chosen(spark: SparkSession, tree: SealedTree) -> DataFrame:
    from pyspark.sql import functions

    if tree.other_files and len(tree.files) <= _MOST_PATHS:
        paths = [glob_literal(f"{tree.root}/{file.directory}/{file.file}") for file in tree.files]
        return _frame(spark, paths, tree.root, _OWN_FILE)
    frame = tree.listed
    if frame is None:
        frame = _frame(spark, [f"{glob_literal(tree.root)}/shard=*"], tree.root, _OWN_FILE)
    if not tree.other_files:
        return frame
    name = functions.col("_metadata.file_name")
    if len(tree.files) < len(tree.other_files):
        counts = name.isin(*(file.file for file in tree.files))
    else:
        counts = ~name.isin(*tree.other_files)
    return frame.where(counts)


def _shown_name(tree: SealedTree) -> Column:
    """The shard's name, from the directory name that Spark has read."""
    from pyspark.sql import functions

    value = functions.col("shard")
    hashed = {
        partition_value(directory): name for directory, name in tree.names.items() if shard_name(directory) is None
    }
    name = value
    if not all(name.isascii() for name in tree.names.values()):
        name = functions.decode(functions.encode(value, "ISO-8859-1"), "UTF-8")
    if hashed:
        known = functions.create_map(*(functions.lit(text) for pair in hashed.items() for text in pair))
        name = functions.when(value.isin(*hashed), functions.try_element_at(known, value)).otherwise(name)
    return name


def _start(files: HadoopFiles, path: str) -> int:
    text = files.read_text(path)
    try:
        start = json.loads(text)["start_offset"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableError(
            f'{path} should be JSON as {{"start_offset": 42}} and is {text[:80]!r}; '
            "`journal check` on the data directory tells what is wrong with it"
        ) from error
    return int(start)


def _name_in(files: HadoopFiles, path: str) -> str:
    name = files.parquet_metadata(path, "journal.shard")
    if name is None:
        raise UnreadableError(f"{path} has no journal.shard in its metadata, so it is not a sealed segment")
    return name
