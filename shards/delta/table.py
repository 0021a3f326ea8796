"""Bringing the Delta table to a wanted state: its own log says what it has, and one commit makes up the difference.

So a commit that a crash prevented is made by the next call, and none is made twice. What reads the log is given by the
caller: `shards.delta.library` is the library that programs use, simulations have a simple one.
"""

from __future__ import annotations

import uuid

import msgspec

from shards.delta.actions import (
    AddedFile,
    TableRequest,
    TableVersion,
    commit,
    compare,
    encode,
    first_actions,
    table_path,
)
from shards.delta.log_files import (
    CommitConflictError,
    exists,
    finish,
    is_in_the_way,
    make_directory,
    move_aside,
    put_commit,
    read_all,
    read_commit,
    removal_times,
    sync_newest,
)
from shards.delta.log_library import LogLibrary, TableState, UnreadableTableError, tidy_log
from shards.delta.schema import table_schema
from shards.delta.statistics import describe
from shards.errors import ConversionFailedError, CorruptionError
from shards.seams.file_system import FileSystem

_ATTEMPTS = 5


def update_table(files: FileSystem, request: TableRequest, library: LogLibrary, now_ms: int) -> TableVersion:
    """Bring the table to the wanted state, durably. A table that cannot be used is moved aside and made anew.

    Args:
        files: The file system.
        request: The wanted state.
        library: Reads the log.
        now_ms: The time, since 1970.

    Raises:
        ConversionFailedError: Another process writes to the table again and again.
        OSError: The disk refused. Another call finds out what was done.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _Update(files, request, library, now_ms).run()
        except CommitConflictError as error:
            conflict = error
    raise ConversionFailedError(f"{conflict}; only the server may write to this table")


class _Update:
    """One attempt."""

    def __init__(self, files: FileSystem, request: TableRequest, library: LogLibrary, now_ms: int) -> None:
        self._files = files
        self._request = request
        self._root = request.root
        self._library = library
        self._now_ms = now_ms
        self._warnings: list[str] = []
        self._left_out: list[str] = []

    def run(self) -> TableVersion:
        if is_in_the_way(self._files, self._root):
            self._move_aside("it is not a directory")
        finish(self._files, self._root)
        state = self._usable_state() if exists(self._files, self._root) else None
        differences = compare(self._request.files, state.files if state is not None else {})
        added = self._described(set(differences.missing))
        removed = differences.unwanted
        if state is not None and not added and not removed:
            sync_newest(self._files, self._root, state.version)
            return self._result(state.version)
        version = state.version + 1 if state is not None else 0
        actions = commit(added, removed, lsn=self._request.lsn, now_ms=self._now_ms)
        if state is None:
            make_directory(self._files, self._root)
            actions[1:1] = first_actions(table_schema(), str(uuid.uuid4()), self._now_ms)
        put_commit(self._files, self._root, version, encode(actions))
        self._tidy(version)
        return self._result(version, len(added), len(removed))

    def _result(self, version: int, added: int = 0, removed: int = 0) -> TableVersion:
        asked = [table_path(*key) for key in self._request.removed]
        times = removal_times(self._files, self._root, asked)
        # A time in the future is that of a clock that was set back.
        ago = [max(0, self._now_ms - times[path]) if path in times else -1 for path in asked]
        infos = (action.get("commitInfo") for action in read_commit(self._files, self._root, version))
        committed_ms = next((int(info.get("timestamp", 0)) for info in infos if isinstance(info, dict)), 0)
        return TableVersion(
            version, added, removed, tuple(self._warnings), committed_ms, tuple(ago), left_out=tuple(self._left_out)
        )

    def _usable_state(self) -> TableState | None:
        try:
            state = self._library.read(self._root)
        except UnreadableTableError as error:
            # A disk that refuses to be read raises its own error here, and the table stays where it is.
            read_all(self._files, self._root)
            problem = str(error)
        else:
            problem = self._problem_of(state)
            if not problem:
                return state
        self._move_aside(problem)
        return None

    def _move_aside(self, problem: str) -> None:
        moved = move_aside(self._files, self._root)
        self._warnings.append(f"the Delta table is made anew, its log is now in {moved}: {problem}")

    def _problem_of(self, state: TableState) -> str:
        if not state.is_plain or state.partitions != ("date",) or state.schema != msgspec.json.decode(table_schema()):
            return "another program made it, or changed its schema or its protocol"
        if state.lsn > self._request.lsn:
            return f"its newest commit is of lsn {state.lsn}, the journal ends with {self._request.lsn}"
        return ""

    def _described(self, missing: set[str]) -> list[AddedFile]:
        found = []
        for day, file_id in sorted(self._request.files):
            if table_path(day, file_id) in missing:
                try:
                    found.append(describe(self._files, self._root, day, file_id))
                except (CorruptionError, FileNotFoundError) as error:
                    self._left_out.append(str(error))
        return found

    def _tidy(self, version: int) -> None:
        """Make a checkpoint when it is time. A failure changes nothing for readers, and the next commit tries again."""
        try:
            tidy_log(self._files, self._root, self._library, version)
        except OSError as error:
            self._warnings.append(f"no checkpoint of the Delta table: {error}")
