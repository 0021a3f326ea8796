"""The history of a journal for programs: `read_records` in Spark, `connect_duckdb` in DuckDB.

What they need is imported when they are called, so that importing the package stays fast.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

    from spark_export.options import SourceOptions


def read_records(
    spark: SparkSession, path: str = "", *, server: str = "", topics: str | Sequence[str] = "#"
) -> DataFrame:
    """Return every present record, sealed or not, with the columns of `journal-spark sql`.

    ``value`` is the payload as VARIANT, null if it is not JSON; ``text`` and ``payload`` have the payload itself, and
    ``date`` the UTC day of the append. The records are those that exist now.

    Args:
        spark: A session whose driver runs in this process.
        path: A data directory or a tree of sealed segments, on any file system that Spark reads.
        server: URL of a server; by default the one that uses the data directory, if one does.
        topics: MQTT topic filters; records of topics that match one are returned.

    Raises:
        UnreadableError: The path has nothing to read, or the server cannot be reached.
        OptionError: The path, the server or a filter is not valid.
    """
    from spark_export.history import Origin, take_history
    from spark_export.query_columns import with_query_columns

    source = _source(path, server, topics)
    history = take_history(spark, Origin(source.path, source.server, source.topics, source.topics))
    return with_query_columns(history.read(spark, reads_few_at_once=True))


def connect_duckdb(
    path: str = "", *, server: str = "", topics: str | Sequence[str] = "#", with_unsealed: bool = True
) -> DuckDBPyConnection:
    """Return a connection to DuckDB, in memory, with the views ``records`` and ``sealed``.

    The columns are those of `journal-spark sql`, with ``value`` as JSON. The views show the records that exist now.
    Close the connection when it is not used any more.

    Args:
        path: A data directory or a tree of sealed segments, on this machine.
        server: URL of a server; by default the one that uses the data directory, if one does.
        topics: MQTT topic filters; records of topics that match one are in the views.
        with_unsealed: Whether ``records`` has what is not sealed, which is read into memory.

    Raises:
        UnreadableError: The path has nothing to read, the server cannot be reached, DuckDB is not installed, or more
            than `spark_export.duckdb_records.MOST_BYTES` of records are not sealed.
        OptionError: The path, the server or a filter is not valid.
    """
    from spark_export.duckdb_records import connect

    return connect(_source(path, server, topics), with_unsealed=with_unsealed)


def _source(path: str, server: str, topics: str | Sequence[str]) -> SourceOptions:
    from spark_export.options import parse_options

    filters = [topics] if isinstance(topics, str) else list(topics)
    given = {"path": path, "server": server, "topics": json.dumps(filters)}
    return parse_options({name: value for name, value in given.items() if value}, "batch")
