"""The log of a Delta table as the library `deltalake` reads it, and its checkpoints.

Commits are written by `shards.delta.log_files`, durably, which the library does not do.
"""

from __future__ import annotations

import os
from typing import Any, Final

import attrs
import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from shards.delta.actions import APPLICATION, PresentFile
from shards.delta.log_library import TableState, UnreadableTableError

_PLAIN: Final = (1, 2)


@attrs.frozen(slots=True)
class VersionFile:
    """A file of one version of the table.

    Attributes:
        path: Its path, relative to the table.
        rows: Number of its rows, live or not.
        shards: Two texts: no name of a shard in it is below the first or above the second. None if they are not known.
        topics: The same for topics.
    """

    path: str
    rows: int
    shards: tuple[str, str] | None
    topics: tuple[str, str] | None


@attrs.frozen(slots=True)
class TableVersionFiles:
    """The files of one version of the table.

    Attributes:
        version: The version.
        files: Its files.
    """

    version: int
    files: tuple[VersionFile, ...]


def files_of_version(root: str, version: int | None = None) -> TableVersionFiles:
    """Return the files of a version of the table.

    Args:
        root: The directory of the table, or its URL.
        version: Which one; None for the newest.

    Raises:
        UnreadableTableError: There is no such table or version, its log is damaged, or it cannot be reached.
    """
    try:
        table = DeltaTable(root if "://" in root else os.path.abspath(root), version=version)
        actions = table.get_add_actions(flatten=True)
        paths, rows = (actions.column(name).to_pylist() for name in ("path", "num_records"))
        shards, topics = (_bounds(actions, name) for name in ("shard", "topic"))
    except (DeltaError, OSError, ValueError, KeyError) as error:
        raise UnreadableTableError(_first_line(error)) from error
    return TableVersionFiles(table.version(), tuple(map(VersionFile, paths, rows, shards, topics)))


def _bounds(actions: Any, column: str) -> list[tuple[str, str] | None]:
    """The smallest and the largest text in a column of each file; None where the log does not tell."""
    smallest, largest = (actions.column(f"{bound}.{column}").to_pylist() for bound in ("min", "max"))
    return [
        None if least is None or most is None else (least, most) for least, most in zip(smallest, largest, strict=True)
    ]


class DeltaLibrary:
    """A `LogLibrary` over the files of the operating system."""

    def read(self, root: str) -> TableState:
        try:
            table = _open(root)
            protocol = table.protocol()
            lsn = table.transaction_version(APPLICATION)
            actions = table.get_add_actions()
            paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
            files = {path: PresentFile(path, size) for path, size in zip(paths, sizes, strict=True)}
            return TableState(
                version=table.version(),
                schema=msgspec.json.decode(table.schema().to_json()),
                is_plain=(protocol.min_reader_version, protocol.min_writer_version) == _PLAIN,
                partitions=tuple(table.metadata().partition_columns),
                lsn=lsn if lsn is not None else -1,
                files=files,
            )
        except (DeltaError, ValueError) as error:
            raise UnreadableTableError(_first_line(error)) from error

    def make_checkpoint(self, root: str) -> None:
        try:
            _open(root).create_checkpoint()
        except DeltaError as error:
            raise OSError(_first_line(error)) from error

    def remove_old_versions(self, root: str) -> None:
        try:
            _open(root).cleanup_metadata()
        except DeltaError as error:
            raise OSError(_first_line(error)) from error


def _open(root: str) -> DeltaTable:
    return DeltaTable(os.path.abspath(root))


def _first_line(error: Exception) -> str:
    """The library adds a trace of its own calls."""
    return str(error).partition("\n")[0]
