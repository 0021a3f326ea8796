"""Commits of the Delta log as values: what a commit has to change, and its text. Pure, and without pyarrow.

The layout is that of the Delta protocol, reader version 1 and writer version 2, without any table feature. The section
"Delta log" of docs/formats.md says which actions and fields are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec

from shards.segments.segment_paths import date_of_day

APPLICATION: Final = "journal"
"""The application id of the transactions, whose version is the newest lsn."""
_ENGINE: Final = "journal"


@attrs.frozen(slots=True)
class TableRequest:
    """The wanted state of the table.

    Attributes:
        root: The directory of all Parquet segments.
        lsn: The newest lsn in the journal; the state contains all entries up to it.
        files: Day and id of each shared file that is valid.
        removed: Files that are not valid any more: since when is the table without them?
    """

    root: str
    lsn: int
    files: tuple[tuple[int, int], ...]
    removed: tuple[tuple[int, int], ...] = ()


@attrs.frozen(slots=True)
class TableVersion:
    """The table has the wanted state.

    Attributes:
        version: Its version.
        added: Number of files that were added to it now.
        removed: Number of files that were removed from it now.
        warnings: What did not work, and was replaced or is tried again.
        committed_ms: When its newest commit was made, since 1970; 0 if the log does not have it any more.
        removed_ago_ms: For each of the files that were asked about, how long ago the commit without it was made; -1 if
            the log has no such commit.
        left_out: Why some of the wanted files are not in it: they are damaged or missing, each with its path.
    """

    version: int
    added: int = 0
    removed: int = 0
    warnings: tuple[str, ...] = ()
    committed_ms: int = 0
    removed_ago_ms: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


@attrs.frozen(slots=True)
class PresentFile:
    """A file that is in the table.

    Attributes:
        path: Its path, relative to the table.
        size_bytes: Its size.
    """

    path: str
    size_bytes: int


@attrs.frozen(slots=True)
class AddedFile:
    """A file that is to be added.

    Attributes:
        path: Its path, relative to the table.
        size_bytes: Its size.
        modified_ms: When it was written, since 1970.
        rewritten_from: Paths of the files in which its rows were before; empty if they were in none.
        statistics: JSON: number of rows, smallest and largest values.
    """

    path: str
    size_bytes: int
    modified_ms: int
    rewritten_from: tuple[str, ...]
    statistics: str


@attrs.frozen(slots=True)
class Differences:
    """What a commit has to change.

    Attributes:
        missing: Paths of files that are wanted and not in the table.
        unwanted: Files of the table that are not wanted.
    """

    missing: tuple[str, ...]
    unwanted: tuple[PresentFile, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unwanted)


def compare(wanted: Iterable[tuple[int, int]], present: Mapping[str, PresentFile]) -> Differences:
    """Compare the wanted files with those of the table.

    A file with some day and id never changes, so that paths are all that has to be compared.

    Args:
        wanted: Day and id of each file.
        present: The files of the table by path.
    """
    paths = {table_path(day, file_id) for day, file_id in wanted}
    unwanted = sorted(present.keys() - paths)
    return Differences(tuple(sorted(paths - present.keys())), tuple(present[path] for path in unwanted))


def commit(
    added: Sequence[AddedFile], removed: Sequence[PresentFile], *, lsn: int, now_ms: int
) -> list[dict[str, Any]]:
    """Return the actions of a commit.

    Files whose rows were all in files that this commit removes are no change of the data, and neither are those files:
    programs that follow the changes leave them out. If only some of the rows were, all rows count as new, so that
    such programs see some of them twice and miss none.

    Args:
        added: Files to add.
        removed: Files to remove.
        lsn: The newest lsn that the table contains then.
        now_ms: The time, since 1970.
    """
    gone = {file.path for file in removed}
    rewritten = {file.path: file for file in added if file.rewritten_from and gone.issuperset(file.rewritten_from)}
    sources = {path for file in rewritten.values() for path in file.rewritten_from}
    actions: list[dict[str, Any]] = [_commit_info(added, removed, now_ms)]
    actions.append({"txn": {"appId": APPLICATION, "version": lsn, "lastUpdated": now_ms}})
    actions += [_remove(file, now_ms, data_change=file.path not in sources) for file in removed]
    actions += [_add(file, data_change=file.path not in rewritten) for file in added]
    return actions


STATISTICS_OF: Final = ("shard", "shard_id", "offset", "lsn", "timestamp", "append_time", "topic")
"""Columns of which the log has the smallest and the largest value in each file."""

CONFIGURATION: Final = {
    # The files of older versions are removed soon: their log serves only programs that follow the changes.
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    # A library that expects statistics of more columns may leave out files that have none.
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS_OF),
}


def first_actions(schema: str, table_id: str, now_ms: int) -> list[dict[str, Any]]:
    """Return the actions that make a new table, for the beginning of its first commit.

    Args:
        schema: The schema as text.
        table_id: A random UUID.
        now_ms: The time, since 1970.
    """
    return [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": table_id,
                "name": "records",
                "description": "The sealed history of a journal server, written by it alone.",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": ["date"],
                "configuration": CONFIGURATION,
                "createdTime": now_ms,
            }
        },
    ]


def encode(actions: Iterable[dict[str, Any]]) -> bytes:
    """Return the text of a commit: an action a line."""
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def table_path(day: int, file_id: int) -> str:
    """Path of a shared file, relative to the table."""
    return f"date={date_of_day(day)}/{file_id:016x}.parquet"


def _partition(path: str) -> dict[str, str]:
    return {"date": path.partition("/")[0].removeprefix("date=")}


def _commit_info(added: Sequence[AddedFile], removed: Sequence[PresentFile], now_ms: int) -> dict[str, Any]:
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "WRITE" if added else "DELETE",
            "operationParameters": {},
            "operationMetrics": {"numAddedFiles": str(len(added)), "numRemovedFiles": str(len(removed))},
            "engineInfo": _ENGINE,
        }
    }


def _add(file: AddedFile, *, data_change: bool) -> dict[str, Any]:
    return {
        "add": {
            "path": file.path,
            "partitionValues": _partition(file.path),
            "size": file.size_bytes,
            "modificationTime": file.modified_ms,
            "dataChange": data_change,
            "stats": file.statistics,
        }
    }


def _remove(file: PresentFile, now_ms: int, *, data_change: bool) -> dict[str, Any]:
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": _partition(file.path),
            "size": file.size_bytes,
        }
    }
