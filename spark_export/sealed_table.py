"""`read_sealed`: the history of a journal as an ordinary Spark table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shards.topics.topic_filters import validate_filter
from spark_export.errors import OptionError
from spark_export.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_sealed(
    spark: SparkSession,
    path: str,
    *,
    topics: str | Sequence[str] = "#",
    shards: str | Sequence[str] | None = None,
    with_unsealed: bool = False,
    server: str | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the records of sealed segments, with the columns of the data source `journal` and ``date``, the UTC day.

    The files are those that exist now; segments that are sealed later are not in the data frame. The server may replace
    and remove shared files later: a query that does not find one ends with an error, and a new data frame has the new
    files. A filter on ``shard`` or ``date`` selects directories, one on ``offset``, ``timestamp``, ``append_time``,
    ``topic`` or ``key`` selects row groups. Expired records are part of the history and returned. Trimmed ones and
    those of deleted shards are not, if the path is a data directory; of a tree alone see docs/spark.md.

    Args:
        spark: A session whose driver runs in this process.
        path: A data directory, on this machine, or a tree of sealed segments, on any file system that Spark reads.
        topics: MQTT topic filters; records of topics that match one are returned.
        shards: MQTT topic filters; only shards that match one are read. By default those in ``topics``: name the shards
            to which topics are mapped, if there is a mapping rule.
        with_unsealed: Add unsealed records, through the data source `journal`: every present record, once.
        server: URL of the server for these; by default the one that uses the data directory, if one does.
        version: Return the records of this version of the Delta table, without unsealed ones. Records that were
            trimmed since then are among them, as for other readers of the table.

    Raises:
        UnreadableError: The path has nothing to read, or no such version, or the server cannot be reached.
        OptionError: A version is to be read, and unsealed records or a server, too.
        InvalidNameError: A filter is not valid.
    """
    wanted_topics = _filters(topics)
    wanted_shards = wanted_topics if shards is None else _filters(shards)
    # Imported late: it would slow down every import of this package, `journal-spark --help` too.
    from spark_export.file_choice import sealed_files
    from spark_export.history import Origin, take_history
    from spark_export.sealed_scan import scan

    origin = Origin(path, server or "", wanted_topics, wanted_shards)
    options = origin.options()
    if version is not None:
        if with_unsealed:
            raise OptionError(f"version {version} of the table has sealed records only: leave with_unsealed out")
        options["asOfVersion"] = str(version)
    if with_unsealed:
        return take_history(spark, origin).read(spark)
    tree = sealed_files(spark, path, parse_options(options, "batch"))
    return scan(spark, tree, topics=wanted_topics, shards=wanted_shards)


def _filters(given: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(map(validate_filter, [given] if isinstance(given, str) else given))
