"""The Delta log of a table: its state, and commits that are durable and happen once.

The library `deltalake` reads the log and makes checkpoints. Commits are written here, because the library syncs none
(docs/adr/0053). The number of the last batch is the version of an application transaction, so that rows and progress
change in one step. The declaration is a property of the table.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from shards.delta.actions import encode
from shards.delta.library import DeltaLibrary
from shards.delta.log_files import (
    CommitConflictError,
    exists,
    finish,
    make_directory,
    put_commit,
    read_all,
    sync_newest,
)
from shards.delta.log_library import tidy_log
from shards.seams.file_system import FileSystem
from spark_export.errors import UnreadableError
from spark_export.tables.declaration import TableDeclaration
from spark_export.tables.errors import TableConflictError, TableError
from spark_export.tables.part_files import PartFile
from spark_export.tables.schema import PARTITION, STATISTICS_OF, delta_schema

DECLARATION: Final = "journal.declaration"
"""Property of the table with the declaration of its rows."""
KEEP_REMOVED_H: Final = 24
"""How long files stay that the table has no more, in hours: for readers that began before, and for older versions."""
_APPLICATION: Final = "journal-table"
_ENGINE: Final = "journal-spark tables"
_PLAIN: Final = (1, 2)
_ATTEMPTS: Final = 5


@attrs.frozen
class TableFile:
    """A file that counts.

    Attributes:
        path: Its path in the directory of the table.
        size_bytes: Its size.
        rows: Number of its rows.
    """

    path: str
    size_bytes: int
    rows: int

    @property
    def partition(self) -> str:
        """Its directory."""
        return self.path.partition("/")[0]


@attrs.frozen
class TableState:
    """The newest version of a table.

    Attributes:
        version: Its number.
        batch: Number of the last batch that is in it; 0 if none is.
        declaration: See `TableDeclaration.stored`.
        schema: Its schema as decoded JSON.
        table_id: Its id, which stays when its schema changes.
        created_ms: When it was made, since 1970.
        configuration: Its properties.
        files: Its files by path.
    """

    version: int
    batch: int
    declaration: Mapping[str, Any]
    schema: object
    table_id: str
    created_ms: int
    configuration: Mapping[str, str]
    files: Mapping[str, TableFile]


class DeltaLog:
    """The log of one table.

    Args:
        files: The file system.
        root: Directory of the table.
        now_ms: The time since 1970.
    """

    def __init__(self, files: FileSystem, root: str, now_ms: Callable[[], int]) -> None:
        self._files = files
        self._root = root
        self._now_ms = now_ms

    def read(self) -> TableState | None:
        """The newest version; None if there is no table.

        Raises:
            TableError: It is a table of another program, or another program has changed its protocol.
            UnreadableError: The log is damaged.
            OSError: It cannot be read.
        """
        if not exists(self._files, self._root):
            return None
        try:
            return self._state_of(DeltaTable(os.path.abspath(self._root)))
        except (DeltaError, ValueError) as error:
            # A disk that refuses to be read raises its own error here.
            read_all(self._files, self._root)
            reason = str(error).partition("\n")[0]
            raise UnreadableError(f"the Delta log of {self._root} cannot be read: {reason}") from error

    def _state_of(self, table: DeltaTable) -> TableState:
        protocol, metadata = table.protocol(), table.metadata()
        if DECLARATION not in metadata.configuration:
            raise TableError(
                f"{self._root} has a Delta table that `journal-spark tables` has not made: give the table another "
                "directory"
            )
        if (protocol.min_reader_version, protocol.min_writer_version) != _PLAIN:
            raise TableError(
                f"another program has changed the protocol of the Delta table in {self._root} to versions "
                f"{protocol.min_reader_version} and {protocol.min_writer_version}, which are not written here: set it "
                "back, or move the directory away so that the table is made anew"
            )
        actions = table.get_add_actions()
        columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")]
        return TableState(
            version=table.version(),
            batch=table.transaction_version(_APPLICATION) or 0,
            declaration=json.loads(metadata.configuration[DECLARATION]),
            schema=msgspec.json.decode(table.schema().to_json()),
            table_id=str(metadata.id),
            created_ms=metadata.created_time or 0,
            configuration=dict(metadata.configuration),
            files={path: TableFile(path, size, rows or 0) for path, size, rows in zip(*columns, strict=True)},
        )

    def require_schema(self, state: TableState, declaration: TableDeclaration) -> None:
        """Return if the table has the columns of a declaration, with their types.

        Raises:
            TableError: Another program has changed them.
        """
        found, declared = _columns(state.schema), _columns(msgspec.json.decode(delta_schema(declaration)))
        if found != declared:
            differing = [name for name in {**found, **declared} if found.get(name) != declared.get(name)]
            raise TableError(
                f"another program has changed the columns {', '.join(differing)} of the Delta table in {self._root}: "
                f"set them back, or make the table again with --rebuild {declaration.name}"
            )

    def settle(self, state: TableState) -> None:
        """Make the newest commit durable, and remove what crashes left: the process before this one may have ended."""
        finish(self._files, self._root)
        sync_newest(self._files, self._root, state.version)

    def create(self, declaration: TableDeclaration) -> TableState:
        """Make the table, without rows.

        Raises:
            TableConflictError: Another process has made it.
            OSError: The disk refused.
        """
        make_directory(self._files, self._root)
        finish(self._files, self._root)
        protocol = {"protocol": {"minReaderVersion": _PLAIN[0], "minWriterVersion": _PLAIN[1]}}
        metadata = _metadata(declaration, str(uuid.uuid4()), self._now_ms(), {})
        try:
            put_commit(self._files, self._root, 0, encode([self._info("CREATE TABLE", 0, 0), protocol, metadata]))
        except CommitConflictError as error:
            raise TableConflictError(f"another process has made the table in {self._root}") from error
        return self._required()

    def change_declaration(self, state: TableState, declaration: TableDeclaration) -> TableState:
        """Store another declaration, with its columns; rows that are there have null in columns that are added."""
        return self._commit(state, lambda now: [self._info("ADD COLUMNS", 0, 0), self._changed(now, declaration)])

    def add_batch(self, state: TableState, batch: int, parts: Sequence[PartFile]) -> TableState:
        """Add the files of a batch, and count the batch.

        Raises:
            TableConflictError: Another process has added it.
            TableError: Another program has changed the schema or the protocol.
            OSError: The disk refused. Whether it was added shows the next `read`.
        """
        adds = [self._add(part, data_change=True) for part in parts]
        return self._commit(state, lambda _: [self._info("WRITE", len(parts), 0), self._transaction(batch), *adds])

    def begin_anew(self, state: TableState, batch: int, declaration: TableDeclaration) -> TableState:
        """Remove all rows, store the declaration, and count a batch; see `add_batch`."""
        return self._commit(
            state,
            lambda now: [
                self._info("WRITE", 0, len(now.files)),
                self._changed(now, declaration),
                self._transaction(batch),
                *(self._remove(file, data_change=True) for file in now.files.values()),
            ],
        )

    def replace(self, state: TableState, sources: Sequence[TableFile], parts: Sequence[PartFile]) -> TableState:
        """Replace files by others with the same rows.

        Raises:
            TableConflictError: A source is not in the table any more.
            OSError: The disk refused.
        """

        def actions(now: TableState) -> list[dict[str, Any]]:
            if any(now.files.get(each.path) != each for each in sources):
                raise TableConflictError(f"another program has removed files of the table in {self._root}")
            return [
                self._info("OPTIMIZE", len(parts), len(sources)),
                *(self._remove(each, data_change=False) for each in sources),
                *(self._add(part, data_change=False) for part in parts),
            ]

        return self._commit(state, actions)

    def tidy(self, version: int) -> None:
        """Make a checkpoint of the log when it is time, and remove old parts of the log.

        Raises:
            OSError: It was not made, which changes nothing for readers.
        """
        tidy_log(self._files, os.path.abspath(self._root), DeltaLibrary(), version)

    def removable(self) -> list[str]:
        """Paths of files that the table has not had for `KEEP_REMOVED_H` hours.

        Raises:
            OSError: The directory cannot be read.
        """
        try:
            # Only the list is asked for: the library would note the removal in the log with commits that it syncs not.
            return DeltaTable(os.path.abspath(self._root)).vacuum(KEEP_REMOVED_H, dry_run=True, full=True)
        except DeltaError as error:
            raise OSError(str(error).partition("\n")[0]) from error

    def _commit(self, state: TableState, actions_of: Callable[[TableState], list[dict[str, Any]]]) -> TableState:
        for _ in range(_ATTEMPTS):
            content = encode(actions_of(state))
            try:
                put_commit(self._files, self._root, state.version + 1, content)
            except CommitConflictError:
                state = self._after_conflict(state)
            else:
                return self._required()
        raise TableConflictError(f"other programs commit to the table in {self._root} again and again")

    def _after_conflict(self, before: TableState) -> TableState:
        """The state after the commit of another program, such as a DELETE, that may stay."""
        now = self._required()
        if now.batch != before.batch:
            raise TableConflictError(
                f"another process has added batch {now.batch} to the table in {self._root}; only one may keep a table"
            )
        if now.schema != before.schema or now.declaration != before.declaration:
            raise TableConflictError(f"another program has changed the schema of the table in {self._root}")
        return now

    def _required(self) -> TableState:
        state = self.read()
        if state is None:
            raise UnreadableError(f"the Delta log of {self._root} was removed")
        return state

    def _info(self, operation: str, added: int, removed: int) -> dict[str, Any]:
        return {
            "commitInfo": {
                "timestamp": self._now_ms(),
                "operation": operation,
                "operationParameters": {},
                "operationMetrics": {"numAddedFiles": str(added), "numRemovedFiles": str(removed)},
                "engineInfo": _ENGINE,
            }
        }

    def _transaction(self, batch: int) -> dict[str, Any]:
        return {"txn": {"appId": _APPLICATION, "version": batch, "lastUpdated": self._now_ms()}}

    @staticmethod
    def _changed(state: TableState, declaration: TableDeclaration) -> dict[str, Any]:
        return _metadata(declaration, state.table_id, state.created_ms, state.configuration)

    @staticmethod
    def _add(part: PartFile, *, data_change: bool) -> dict[str, Any]:
        return {
            "add": {
                "path": part.path,
                "partitionValues": _partition(part.path),
                "size": part.size_bytes,
                "modificationTime": part.modified_ms,
                "dataChange": data_change,
                "stats": part.statistics,
            }
        }

    def _remove(self, file: TableFile, *, data_change: bool) -> dict[str, Any]:
        return {
            "remove": {
                "path": file.path,
                "deletionTimestamp": self._now_ms(),
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": _partition(file.path),
                "size": file.size_bytes,
            }
        }


def _columns(schema: Any) -> dict[str, object]:
    return {field["name"]: field["type"] for field in schema["fields"]}


def _partition(path: str) -> dict[str, str]:
    return {PARTITION: path.partition("/")[0].removeprefix(f"{PARTITION}=")}


def _metadata(
    declaration: TableDeclaration, table_id: str, created_ms: int, configuration: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "metaData": {
            "id": table_id,
            "name": declaration.name,
            "description": f"Records of {', '.join(declaration.topics)}, kept by `journal-spark tables`.",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": delta_schema(declaration),
            "partitionColumns": [PARTITION],
            "configuration": {
                **configuration,
                "delta.logRetentionDuration": "interval 7 days",
                "delta.deletedFileRetentionDuration": f"interval {KEEP_REMOVED_H} hours",
                # A library that expects statistics of more columns may leave out files that have none.
                "delta.dataSkippingStatsColumns": ",".join(STATISTICS_OF),
                DECLARATION: json.dumps(declaration.stored()),
            },
            "createdTime": created_ms,
        }
    }
