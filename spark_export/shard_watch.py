"""Reads the state of the shards repeatedly, for a stream: often enough to be prompt, but with little load.

The ends of all shards are requested from a server without their segments; segments only for the few shards that a
micro-batch reads. A data directory that is not in use is not opened again until another process has used it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

import attrs

from spark_export.discovery import take_snapshot
from spark_export.file_access import FileTree
from spark_export.options import SourceOptions
from spark_export.read_history import ReadHistory
from spark_export.snapshot import Snapshot

_LOCK_FILE: Final = "LOCK"
# Reading takes at most a tenth of the time, and appended records are seen after at most a second.
_REST_FACTOR: Final = 9
_LONGEST_REST_S: Final = 1.0
_MOST_NAMES: Final = 500


class ShardWatch:
    """The shards of a query, read repeatedly from one process.

    Args:
        options: Options of the query.

    Attributes:
        last: The last snapshot; None before the first.
    """

    def __init__(self, options: SourceOptions) -> None:
        # The offset of a time, lsn or version is only looked for at the beginning, by the caller.
        self._options = options.without_search()
        self._may_look_at_s = 0.0
        self._unused: tuple[int, bytes] | None = None
        self.last: Snapshot | None = None

    def look(self, read: ReadHistory) -> Snapshot:
        """The present ends of all shards; their segments may be missing.

        It waits a little if the last call was just before.

        Args:
            read: What the query has read so far.

        Raises:
            UnreadableError: The path has no shards, or the server cannot be reached.
            StorageError: The data directory cannot be opened.
        """
        if (seen := self._unchanged(read)) is not None:
            return seen
        # There is no event to wait for: a caller that calls again at once has found nothing new.
        time.sleep(max(0.0, self._may_look_at_s - time.monotonic()))
        began_s = time.monotonic()
        found = take_snapshot(self._options, with_segments=False, read=read)
        ended_s = time.monotonic()
        self._may_look_at_s = ended_s + min(_LONGEST_REST_S, _REST_FACTOR * (ended_s - began_s))
        self._unused = None
        if not found.store.server:
            # Empty: no process has it open. A process that opened it after this one closed it would still have it open,
            # because opening a store takes longer than this.
            mark = self._mark()
            self._unused = mark if mark is not None and not mark[1] else None
        self.last = found
        return found

    def segments(self, shards: Sequence[str], read: ReadHistory) -> Snapshot:
        """The shards of these names, and perhaps others, with their present segments.

        Args:
            shards: Their names.
            read: What the query has read so far, or is about to read.

        Raises:
            UnreadableError: The path has no shards, or the server cannot be reached.
            StorageError: The data directory cannot be opened.
        """
        if (seen := self._unchanged(read)) is not None:
            return seen
        options = self._options
        if len(shards) <= _MOST_NAMES:
            options = attrs.evolve(options, shards=tuple(shards))
        return take_snapshot(options, read=read)

    def _unchanged(self, read: ReadHistory) -> Snapshot | None:
        """The last snapshot, if it is of a data directory that no process has used since."""
        if self.last is None or self._unused is None or self._unused != self._mark():
            return None
        return self.last.compared_with(read)

    def _mark(self) -> tuple[int, bytes] | None:
        """Usage of a data directory on this machine: when it was opened or closed last, and by which process."""
        if not self._options.path or self._options.server:
            return None
        tree = FileTree(self._options.path)
        if not tree.is_local:
            return None
        try:
            with open(os.path.join(tree.where, _LOCK_FILE), "rb") as file:
                return os.fstat(file.fileno()).st_mtime_ns, file.read(32)
        except FileNotFoundError:
            return None
