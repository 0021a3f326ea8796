"""The Delta table over the shared files, as the engine sees it: when it is brought up to date, and what that allows.

The views say which files are valid; the worker process compares that with the log of the table and makes one commit
(`shards.delta.table`). A file that is not in the table any more is removed a grace time later, so that a reader who has
planned finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from journal.engine.parquet.converter import ParquetConverter
from shards.back_off import BackOff
from shards.delta.actions import TableRequest
from shards.errors import StorageError
from shards.views.shared_files import FileKey, SharedFiles

_log = logging.getLogger("journal.conversion")

_FAILED: Final = BackOff(1.0, 300.0, jitter=0.0)


class HistoryTable:
    """The table of one engine.

    Args:
        enabled: Whether there is a table at all; if not, files may be removed at any time.
        exists: Whether there may be a table with files already. Otherwise the first file makes it.
        files: The shared files.
        root: The directory of all Parquet segments.
        grace_s: How long a file stays after the commit without it.
        newest_lsn: Returns the newest lsn of the journal that is applied.
        checkpoint_lsn: Returns the lsn of the last checkpoint.
        is_full: Returns whether the disk is nearly full: then a file goes with the commit without it.

    Attributes:
        version: Version of the table after the last commit of this process; -1 before it.
        last_failure: The error of the last attempt, empty after a success.
    """

    def __init__(
        self,
        *,
        enabled: bool,
        exists: bool,
        files: SharedFiles,
        root: str,
        grace_s: float,
        newest_lsn: Callable[[], int],
        checkpoint_lsn: Callable[[], int],
        is_full: Callable[[], bool],
    ) -> None:
        self._enabled = enabled
        self._files = files
        self._root = root
        self._grace_s = grace_s
        self._newest_lsn = newest_lsn
        self._checkpoint_lsn = checkpoint_lsn
        self._is_full = is_full
        # The files in the table as of the last commit; None before the first one, since a crash may have prevented it.
        self._committed: frozenset[FileKey] | None = None if exists else frozenset()
        self._compared: tuple[int, int] | None = None
        self._out_since: dict[FileKey, float] = {}
        self._failures = 0
        self._not_before = 0.0
        self.version = -1
        self.last_failure = ""

    @property
    def is_due(self) -> bool:
        """Whether the table is to be brought up to date now."""
        return self._enabled and trio.current_time() >= self._not_before and self._differs()

    @property
    def is_current(self) -> bool:
        """Whether the table has the files that are valid, or there is none."""
        return not (self._enabled and self._differs())

    @property
    def due_at(self) -> float:
        """When it is to be tried again after a failure, by trio's clock; infinite if there is nothing to do."""
        return self._not_before if self._failures and self._differs() else float("inf")

    def _differs(self) -> bool:
        """Whether other files are valid than the table has. Looked up only after something has changed."""
        compared = self._files.generation, self._checkpoint_lsn()
        if self._committed is not None and compared == self._compared:
            return False
        if self._wanted() == self._committed:
            self._compared = compared
            return False
        return True

    def _wanted(self) -> frozenset[FileKey]:
        return frozenset(self._files.valid(self._checkpoint_lsn()))

    async def bring_up_to_date(self, converter: ParquetConverter) -> None:
        """Make the commit that is due. A failure is logged, and tried again after a pause.

        REQUIRES: no entry about shared files is half applied.
        """
        wanted = self._wanted()
        request = TableRequest(self._root, self._newest_lsn(), tuple(sorted(wanted)))
        try:
            table = await converter.update_table(request)
        except (StorageError, OSError) as error:
            self._not_before = trio.current_time() + _FAILED.delay_s(self._failures)
            self._failures += 1
            failure = f"the Delta table in {self._root} is not up to date: {error}"
            if self.last_failure != failure:
                _log.error("%s", failure)
            self.last_failure = failure
            return
        for warning in table.warnings:
            _log.warning("%s", warning)
        self._failures, self._not_before, self.last_failure = 0, 0.0, ""
        self.version = table.version
        self._committed = wanted
        now = trio.current_time()
        out = {file.key for file in self._files} - wanted
        self._out_since = {key: self._out_since.get(key, now) for key in out}

    def may_remove(self, key: FileKey) -> bool:
        """Whether a file to which nothing refers may be removed: it has not been in the table for the grace time.

        A start does not know since when, and waits for the whole grace time.
        """
        if not self._enabled:
            return True
        since = self._out_since.get(key)
        return since is not None and (self._is_full() or trio.current_time() >= since + self._grace_s)
