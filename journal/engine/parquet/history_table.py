"""The Delta table over the shared files, as the engine sees it: when it is brought up to date, and what that allows.

The views say which files are valid; the worker process compares that with the log of the table and makes one commit
(`shards.delta.table`). A file that is not in the table any more is removed a grace time later, so that a reader who has
planned finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from journal.engine.parquet.converter import ParquetConverter
from shards.back_off import BackOff
from shards.delta.actions import TableRequest
from shards.errors import StorageError
from shards.views.shared_files import FileKey, SharedFiles

_log = logging.getLogger("journal.conversion")

_FAILED: Final = BackOff(1.0, 300.0, jitter=0.0)
_LEFT_OUT_AGAIN_S: Final = 300.0


@attrs.frozen(slots=True)
class TableStatus:
    """What operators want to know of the table.

    Attributes:
        version: Its version when it was last compared with the shared files; -1 before that, or without a table.
        committed_at_s: When the commit of that version was made, in seconds since 1970; 0 if that is not known.
        behind_s: For how long it has had other files than those that are valid; 0 if it has the same.
        failures: Attempts to bring it up to date that failed, since the start.
        waiting_files: Files that are not in it any more, and stay for readers who have planned.
    """

    version: int
    committed_at_s: float
    behind_s: float
    failures: int
    waiting_files: int


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
        is_whole: Returns whether all files are here. Until then the table stays as it is.

    Attributes:
        version: Version of the table when it was last compared with the shared files; -1 before the first time.
        committed_ms: When the commit of that version was made, in milliseconds since 1970; 0 if that is not known.
        failures: Attempts to bring it up to date that failed, since the start.
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
        is_whole: Callable[[], bool],
    ) -> None:
        self._enabled = enabled
        self._files = files
        self._root = root
        self._grace_s = grace_s
        self._newest_lsn = newest_lsn
        self._checkpoint_lsn = checkpoint_lsn
        self._is_full = is_full
        self._is_whole = is_whole
        # The files in the table as of the last commit; None before the first one, since a crash may have prevented it.
        self._committed: frozenset[FileKey] | None = None if exists else frozenset()
        self._compared: tuple[int, int] | None = None
        self._out_since: dict[FileKey, float] = {}
        self._failures_in_a_row = 0
        self._not_before = 0.0
        self._behind_since: float | None = None
        self._left_out: tuple[str, ...] = ()
        self._look_again_at = float("inf")
        # Until there is a later checkpoint it is not known which files are valid.
        self._unknown_at_lsn: int | None = None
        self.version = -1
        self.committed_ms = 0
        self.failures = 0
        self.last_failure = ""

    @property
    def is_due(self) -> bool:
        """Whether the table is to be brought up to date now."""
        now = trio.current_time()
        if self._checkpoint_lsn() == self._unknown_at_lsn or not self._is_whole():
            return False
        return self._enabled and now >= self._not_before and (now >= self._look_again_at or self._differs())

    @property
    def is_current(self) -> bool:
        """Whether the table has the files that are valid, or there is none."""
        return not (self._enabled and self._differs())

    @property
    def due_at(self) -> float:
        """When to try again, by trio's clock, after a failure or without damaged files; otherwise infinite."""
        tried_again = self._not_before if self._failures_in_a_row and self._differs() else float("inf")
        return min(tried_again, max(self._look_again_at, self._not_before))

    @property
    def failure(self) -> str:
        """What does not work: the error of the last attempt, otherwise which files cannot be in the table; or empty."""
        if self.last_failure or not self._left_out:
            return self.last_failure
        others = len(self._left_out) - 1
        more = f" and {others} more like it" if others else ""
        return f"a damaged file is left out of the Delta table: {self._left_out[0]}{more}"

    @property
    def status(self) -> TableStatus:
        """What is known of it now."""
        behind_s = 0.0
        if not self.is_current and self._behind_since is not None:
            behind_s = trio.current_time() - self._behind_since
        waiting = sum(self._files.get(key) is not None for key in self._out_since)
        return TableStatus(self.version, self.committed_ms / 1000, behind_s, self.failures, waiting)

    def _differs(self) -> bool:
        """Whether other files are valid than the table has. Looked up only after something has changed."""
        compared = self._files.generation, self._checkpoint_lsn()
        if self._committed is not None and compared == self._compared:
            return False
        if self._wanted() == self._committed:
            self._compared = compared
            self._behind_since = None
            return False
        if self._behind_since is None:
            self._behind_since = trio.current_time()
        return True

    def _wanted(self) -> frozenset[FileKey]:
        return frozenset(self._files.valid(self._checkpoint_lsn()))

    def note_rewritten(self, keys: Iterable[FileKey]) -> None:
        """Note files that were rewritten and in which no shard has segments any more.

        Some of the segments may have been dropped while they were rewritten, instead of replaced by others. Their
        records are in the new files, so the old ones must not stay until a checkpoint saves what was dropped.
        """
        self._files.note_replacement((), keys)

    def needs_checkpoint(self, dropped: Iterable[FileKey]) -> bool:
        """Whether the table waits after a start for a checkpoint. To be called once, before the first commit.

        Records may have been dropped while they were rewritten (see `note_rewritten`), which the journal does not tell.
        Then the table stays as it is until a checkpoint has saved what was dropped.

        Args:
            dropped: Files from which the replay dropped segments.
        """
        lsn = self._checkpoint_lsn()
        doubtful = {file.key for file in self._files if file.lsn <= lsn}.intersection(dropped, self._files.valid(lsn))
        if doubtful and any(file.lsn > lsn for file in self._files):
            self._unknown_at_lsn = lsn
        return self._enabled and self._unknown_at_lsn is not None

    async def bring_up_to_date(self, converter: ParquetConverter) -> None:
        """Make the commit that is due. A failure is logged, and tried again after a pause.

        REQUIRES: no entry about shared files is half applied.
        """
        wanted = self._wanted()
        # Those that an earlier start knew of: the log of the table tells since when it is without them.
        unknown = tuple(file.key for file in self._files if file.key not in wanted and file.key not in self._out_since)
        request = TableRequest(self._root, self._newest_lsn(), tuple(sorted(wanted)), unknown)
        try:
            table = await converter.update_table(request)
        except (StorageError, OSError) as error:
            self._not_before = trio.current_time() + _FAILED.delay_s(self._failures_in_a_row)
            self._failures_in_a_row += 1
            self.failures += 1
            failure = f"the Delta table in {self._root} is not up to date: {error}"
            if self.last_failure != failure:
                _log.error("%s", failure)
            self.last_failure = failure
            return
        for warning in table.warnings:
            _log.warning("%s", warning)
        for left_out in table.left_out:
            if left_out not in self._left_out:
                _log.error("a damaged file is left out of the Delta table: %s", left_out)
        self._left_out = table.left_out
        # It may have been put back by then.
        self._look_again_at = trio.current_time() + _LEFT_OUT_AGAIN_S if table.left_out else float("inf")
        self._failures_in_a_row, self._not_before, self.last_failure = 0, 0.0, ""
        self.version, self.committed_ms = table.version, table.committed_ms
        self._committed = wanted
        self._behind_since = None
        now = trio.current_time()
        before = {key: now - ago / 1000 for key, ago in zip(unknown, table.removed_ago_ms, strict=True) if ago >= 0}
        out = {file.key for file in self._files} - wanted
        self._out_since = {key: self._out_since.get(key, before.get(key, now)) for key in out}

    def may_remove(self, key: FileKey) -> bool:
        """Whether a file to which nothing refers may be removed: it has not been in the table for the grace time.

        After a start that is known when the table was first compared with the files.
        """
        if not self._enabled:
            return True
        since = self._out_since.get(key)
        return since is not None and (self._is_full() or trio.current_time() >= since + self._grace_s)
