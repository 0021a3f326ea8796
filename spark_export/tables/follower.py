"""Keeping several tables up to date in one process: each at its interval, or once.

Tables take turns of a batch, so one that has much to catch up does not hold up the others. What may pass, such as a
server that is restarted, is tried again; what does not pass ends a table, and the others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import attrs

from shards.back_off import BackOff
from shards.errors import StorageError
from spark_export.errors import DataLossError, OptionError, UnreadableError
from spark_export.tables.compaction import Compacted
from spark_export.tables.declaration import TableDeclaration
from spark_export.tables.errors import StoppingError, TableError
from spark_export.tables.updater import AddedBatch, TableUpdater

Report = Callable[["AddedBatch | Compacted | TableFailure"], None]

_RETRY: Final = BackOff(first_s=0.5, longest_s=15.0)
_REMOVE_EVERY_S: Final = 3600.0
# What another attempt does not change, unlike a server that is out or a disk that is full.
_FINAL: Final = (TableError, DataLossError, OptionError)
_PASSING: Final = (UnreadableError, StorageError, OSError)


@attrs.frozen
class TableFailure:
    """A table that could not be brought up to date.

    Attributes:
        table: Its name.
        error: What was wrong.
        is_final: Whether it is not tried again.
    """

    table: str
    error: str
    is_final: bool


class TableFollower:
    """Keeps tables up to date.

    Args:
        tables: The tables.
        source: Where the records are; see `TableUpdater`.
        report: Called for each batch, for merged files, and for failures.
        once: Add the records that are there, then end; failures are not tried again.
        rebuild: Names of tables to make again.
        stopping: When it is set, `run` ends: what is being done is abandoned, and nothing of it is in a table.
    """

    def __init__(
        self,
        tables: Sequence[TableDeclaration],
        source: Mapping[str, str],
        report: Report,
        *,
        once: bool = False,
        rebuild: Collection[str] = (),
        stopping: threading.Event | None = None,
    ) -> None:
        self._report = report
        self._once = once
        self._stopping = stopping or threading.Event()
        self._tables = [_Followed(each, source, self._stopping.is_set, rebuild=each.name in rebuild) for each in tables]

    def run(self) -> list[str]:
        """Run until it is stopped, until no table is left, or once; return the names of tables that failed."""
        try:
            while (waiting := [each for each in self._tables if not each.is_done]) and not self._stopping.is_set():
                table = min(waiting, key=lambda each: each.due_s)
                # Rounded up a little by the operating system; a table that is due has no wait.
                if self._stopping.wait(max(0.0, table.due_s - time.monotonic())):
                    break
                self._take_turn(table)
        finally:
            for table in self._tables:
                table.close()
        return [table.name for table in self._tables if table.has_failed]

    def _take_turn(self, table: _Followed) -> None:
        try:
            is_up_to_date = table.advance(self._report)
        except StoppingError:
            return
        except _FINAL as error:
            self._fail(table, error, is_final=True)
        except _PASSING as error:
            self._fail(table, error, is_final=self._once)
        else:
            if is_up_to_date:
                table.rest(is_done=self._once)
            else:
                table.go_on()

    def _fail(self, table: _Followed, error: Exception, *, is_final: bool) -> None:
        text = str(error) or type(error).__name__
        if table.fail(text, is_final=is_final):
            self._report(TableFailure(table.name, text, is_final))


class _Followed:
    """One table and when it is due."""

    def __init__(
        self,
        declaration: TableDeclaration,
        source: Mapping[str, str],
        is_stopping: Callable[[], bool],
        *,
        rebuild: bool,
    ) -> None:
        self.name = declaration.name
        self.due_s = time.monotonic()
        self.is_done = False
        self.has_failed = False
        self._declaration = declaration
        self._source = dict(source)
        self._is_stopping = is_stopping
        self._rebuild = rebuild
        self._updater: TableUpdater | None = None
        self._failures = 0
        self._failure = ""
        self._remove_at_s = 0.0

    def advance(self, report: Report) -> bool:
        """Add a batch, or merge files if there is none; return whether nothing is left to do."""
        if self._updater is None:
            updater = TableUpdater(
                self._declaration, self._source, rebuild=self._rebuild, is_stopping=self._is_stopping
            )
            self._updater = updater.__enter__()
            self._rebuild = False
        added = self._updater.add_batch()
        self._failures, self._failure = 0, ""
        if added is not None:
            report(added)
            if added.behind:
                return False
        merged = self._updater.merge_files()
        if merged is not None:
            report(merged)
            return False
        if time.monotonic() >= self._remove_at_s:
            self._updater.remove_old_files()
            self._remove_at_s = time.monotonic() + _REMOVE_EVERY_S
        return True

    def go_on(self) -> None:
        """Have another turn, after the tables that are due by now."""
        self.due_s = time.monotonic()

    def rest(self, *, is_done: bool) -> None:
        """Wait for the next interval."""
        self.is_done = is_done
        self.due_s = max(self.due_s + self._declaration.interval_s, time.monotonic())

    def fail(self, text: str, *, is_final: bool) -> bool:
        """Note a failure; return whether it is news."""
        # What became of a commit is found out by opening the table again.
        self.close()
        self.is_done = is_final
        self.has_failed = self.has_failed or is_final
        self.due_s = time.monotonic() + _RETRY.delay_s(self._failures)
        self._failures += 1
        is_news = is_final or text != self._failure
        self._failure = text
        return is_news

    def close(self) -> None:
        """Release the table."""
        if self._updater is not None:
            self._updater.__exit__(None, None, None)
            self._updater = None
