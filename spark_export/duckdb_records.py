"""The history of a journal in DuckDB, without Java: sealed files are scanned, the rest is read once.

Files are read where they are, by DuckDB's own reader. Records that are in no sealed file are read into memory when the
connection is made, up to `MOST_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from shards.extras import install_command
from shards.quantities import format_size
from shards.topics.topic_filters import is_filter, pattern
from spark_export.discovery import take_snapshot
from spark_export.errors import QueryError, UnreadableError
from spark_export.history_files import HistoryFile, HistoryFiles, history_files
from spark_export.options import SourceOptions
from spark_export.planning import Part, weight_bytes
from spark_export.snapshot import Snapshot, Store
from spark_export.wanted_rows import ROWS, Wanted

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

MOST_BYTES: Final = 1 << 30
"""Records that are not sealed, in memory."""

_MOST_LISTINGS: Final = 5
_ROWS_AT_ONCE: Final = 2048
_UNSEALED: Final = "unsealed_rows"
_LIVE: Final = "live_rows"
_OWN: Final = 'shard, "offset", timestamp, append_time, key, value, headers, tags'
_DATE: Final = "cast(append_time as date) as date"
_QUERY_COLUMNS: Final = """
    select topic, shard, "offset", timestamp, append_time, date, key,
           try_cast(text as json) as value, text, payload, headers, tags
    from (select * exclude (value), value as payload, try(decode(value)) as text from ({rows}))
"""


def connect(options: SourceOptions, *, with_unsealed: bool = True) -> DuckDBPyConnection:
    """A connection with the views ``records`` and ``sealed``; see `spark_export.records_table.connect_duckdb`."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise UnreadableError(f"DuckDB is not installed; `{install_command('duckdb')}` installs it") from error
    if "://" in options.path and not options.path.startswith("file://"):
        raise UnreadableError(f"DuckDB reads files of this machine, not {options.path}; use Spark for that")
    snapshot, files = _listed(options)
    rest = _rows(snapshot.store, files.rest if with_unsealed else (), options)
    connection = duckdb.connect(":memory:")
    try:
        # Nothing is fetched from elsewhere, whatever a query uses.
        connection.execute("set autoinstall_known_extensions = false; set TimeZone = 'UTC'")
        connection.register(_UNSEALED, rest)
        _make_views(connection, files, options.topics)
    except BaseException:
        connection.close()
        raise
    return connection


def _listed(options: SourceOptions) -> tuple[Snapshot, HistoryFiles]:
    """A snapshot and its files, which a server may replace in between."""
    for _ in range(_MOST_LISTINGS - 1):
        try:
            snapshot = take_snapshot(options, with_segments=True)
            return snapshot, history_files(snapshot)
        except FileNotFoundError:
            continue
    snapshot = take_snapshot(options, with_segments=True)
    return snapshot, history_files(snapshot)


def _rows(store: Store, parts: Sequence[Part], options: SourceOptions) -> pa.Table:
    """The records of parts, in memory."""
    import pyarrow as pa

    wanted = Wanted.of_columns(ROWS.names, options)
    if (size_bytes := weight_bytes(parts)) > MOST_BYTES:
        raise _too_large(size_bytes)
    batches = []
    size_bytes = 0
    for batch in _read(store, parts, wanted):
        size_bytes += batch.nbytes
        if size_bytes > MOST_BYTES:
            raise _too_large(size_bytes)
        batches.append(batch)
    return pa.Table.from_batches(batches, wanted.schema)


def _read(store: Store, parts: Sequence[Part], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    if parts:
        # Imported late: it needs a client, and many queries are about files alone.
        from spark_export.reading import read_parts

        yield from read_parts(store, parts, wanted)


def _too_large(size_bytes: int) -> UnreadableError:
    return UnreadableError(
        f"{format_size(size_bytes)} or more of the records are not sealed, and DuckDB gets these in memory, up to "
        f"{format_size(MOST_BYTES)}: query the view `sealed`, select --topics, convert them (`journal shard convert`), "
        "or use Spark"
    )


def fetch(connection: DuckDBPyConnection, query: str, most: int | None) -> tuple[pa.Table, bool, frozenset[int]]:
    """The rows of a query, whether there are more than `most`, and the numbers of the columns with JSON.

    Raises:
        QueryError: DuckDB refuses the query, or it fails.
    """
    import duckdb
    import pyarrow as pa

    try:
        answer = connection.sql(query)
        json_columns = frozenset(number for number, kind in enumerate(answer.types) if str(kind) == "JSON")
        reader = answer.to_arrow_reader(_ROWS_AT_ONCE)
        batches = []
        rows = 0
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            if most is not None and rows > most:
                break
    except duckdb.Error as error:
        # The lines after the first one have the query again, as it was translated.
        raise QueryError(str(error).partition("\n")[0]) from error
    table = pa.Table.from_batches(batches, reader.schema)
    return (table if most is None else table.slice(0, most)), most is not None and rows > most, json_columns


def _make_views(connection: DuckDBPyConnection, files: HistoryFiles, topics: Sequence[str]) -> None:
    sealed = f"select * from ({_sealed_rows(connection, files.sealed)}) where {_matching(topics)}"
    both = f"select topic, {_OWN}, date from ({sealed}) union all select topic, {_OWN}, {_DATE} from {_UNSEALED}"
    connection.execute(f"create view sealed as {_QUERY_COLUMNS.format(rows=sealed)}")
    connection.execute(f"create view records as {_QUERY_COLUMNS.format(rows=both)}")


def _sealed_rows(connection: DuckDBPyConnection, files: Sequence[HistoryFile]) -> str:
    """A query for the live rows of all files."""
    queries = []
    if whole := [each for each in files if each.live_rows == each.rows]:
        queries.append(f"select topic, {_OWN}, date from {_scan_shared(whole)}")
    if partial := [each for each in files if each.live_rows < each.rows]:
        _fill(connection, partial)
        queries.append(
            f"select topic, {_OWN}, date from {_scan_shared(partial)} as stored semi join {_LIVE} as live "
            'on stored.file = live.path and stored.shard_id = live.shard_id and stored."offset" >= live.first_offset '
            'and stored."offset" < live.next_offset'
        )
    return " union all ".join(queries) or f"select topic, {_OWN}, {_DATE} from {_UNSEALED} limit 0"


def _scan_shared(files: Iterable[HistoryFile]) -> str:
    hive = "hive_partitioning = true, hive_types = {'date': date}, filename = 'file'"
    return f"read_parquet({_paths(files)}, {hive})"


def _fill(connection: DuckDBPyConnection, files: Iterable[HistoryFile]) -> None:
    """Make the table of the live rows of files that have others, too."""
    import pyarrow as pa

    rows = [(each.path, one) for each in files for one in each.live]
    table = pa.table(
        {
            "path": pa.array([path for path, _ in rows], pa.string()),
            "shard_id": pa.array([one.shard_id for _, one in rows], pa.int64()),
            "first_offset": pa.array([one.first_offset for _, one in rows], pa.int64()),
            "next_offset": pa.array([one.next_offset for _, one in rows], pa.int64()),
        }
    )
    connection.register(_LIVE, table)


def _matching(filters: Sequence[str]) -> str:
    """A condition: the topic matches at least one of some valid filters."""
    return " or ".join(f"({_matches(one)})" for one in dict.fromkeys(filters))


def _matches(topic_filter: str) -> str:
    if not is_filter(topic_filter):
        return f"topic = {_text(topic_filter)}"
    if topic_filter == "#":
        return "not starts_with(topic, '$')"
    # DuckDB's expressions have no conditions on what follows.
    expression = pattern(topic_filter).pattern
    internal = "(?!\\$)"
    found = f"regexp_full_match(topic, {_text(f'(?s){expression.removeprefix(internal)}')})"
    return f"not starts_with(topic, '$') and {found}" if expression.startswith(internal) else found


def _paths(files: Iterable[HistoryFile]) -> str:
    return f"[{', '.join(_text(_literal(each.path)) for each in files)}]"


def _literal(path: str) -> str:
    """A pattern that matches only this path; DuckDB treats every path as a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
