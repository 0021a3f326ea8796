"""Looking again and again at what there is, as a stream does: often enough to be prompt, seldom enough to be no burden.

How far the shards reach is asked of a server without their segments; those are asked for the few shards that a
micro-batch reads. A data directory at rest is not opened again until another process has used it.
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
# Looking takes up a tenth of the time at most, and what was appended is seen after a second at the latest.
_REST_FACTOR: Final = 9
_LONGEST_REST_S: Final = 1.0
_MOST_NAMES: Final = 500


class ShardWatch:
    """What a query looks into, seen again and again from one process.

    Args:
        options: The query's.

    Attributes:
        last: What was seen last; None before the first look.
    """

    def __init__(self, options: SourceOptions) -> None:
        # The offset of a time is asked for once, by whoever begins.
        self._options = attrs.evolve(options, starting_us=None)
        self._may_look_at_s = 0.0
        self._unused: tuple[int, bytes] | None = None
        self.last: Snapshot | None = None

    def look(self, read: ReadHistory) -> Snapshot:
        """How far all shards reach now; their segments may be missing.

        It waits a little if the last look was just before.

        Args:
            read: What the query has read so far.

        Raises:
            UnreadableError: The path holds nothing of ours, or the server cannot be reached.
            StorageError: The data directory cannot be opened.
        """
        if (seen := self._unchanged(read)) is not None:
            return seen
        # There is nothing to wait for but the time: who asks again at once has found nothing new.
        time.sleep(max(0.0, self._may_look_at_s - time.monotonic()))
        began_s = time.monotonic()
        found = take_snapshot(self._options, with_segments=False, read=read)
        ended_s = time.monotonic()
        self._may_look_at_s = ended_s + min(_LONGEST_REST_S, _REST_FACTOR * (ended_s - began_s))
        self._unused = None
        if not found.store.server:
            # Empty: nobody holds it. Whoever had opened it since we left it would still be at it, for opening a store
            # takes longer than coming here.
            mark = self._mark()
            self._unused = mark if mark is not None and not mark[1] else None
        self.last = found
        return found

    def segments(self, shards: Sequence[str], read: ReadHistory) -> Snapshot:
        """The shards of these names, and perhaps others, with their segments as they are now.

        Args:
            shards: Their names.
            read: What the query has read so far, or is about to read.

        Raises:
            UnreadableError: The path holds nothing of ours, or the server cannot be reached.
            StorageError: The data directory cannot be opened.
        """
        if (seen := self._unchanged(read)) is not None:
            return seen
        options = self._options
        if len(shards) <= _MOST_NAMES:
            options = attrs.evolve(options, shards=tuple(shards))
        return take_snapshot(options, read=read)

    def _unchanged(self, read: ReadHistory) -> Snapshot | None:
        """What was seen last, if it is a data directory that nobody has used since."""
        if self.last is None or self._unused is None or self._unused != self._mark():
            return None
        return self.last.compared_with(read)

    def _mark(self) -> tuple[int, bytes] | None:
        """What a data directory on this machine tells of its use: when it was opened or left last, and who holds it."""
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
