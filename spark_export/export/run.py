"""One run of an export: new records are read, written where readers do not see them, and published in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_export.export.options import ExportOptions
from spark_export.export.outcome import ExportProgress, ExportResult
from spark_export.export.state import ExportState
from spark_export.export.writing import (
    OnProgress,
    abandoned_on_failure,
    clean_up,
    ignore,
    session_of,
    target_of,
    write_aside,
)
from spark_export.history import History, take_history
from spark_export.replanning import with_present_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_export(spark: SparkSession, options: ExportOptions, *, progress: OnProgress | None = None) -> ExportResult:
    """Add the records since the last run of this export to the target.

    A run that fails or is killed at any point leaves the target unchanged or complete, and the next run continues from
    there: no record is missing and none is written twice. Of two concurrent runs one is published.

    Args:
        spark: A session whose driver runs in this process.
        options: The export.
        progress: Called during the run, also from other threads.

    Raises:
        ExportConflictError: Another process published the same run first.
        ExportError: The target cannot be exported to.
        DataLossError: Records were trimmed before they were exported, a shard was deleted, or the store was restored to
            an older state, and the options make that an error.
        OptionError: Earlier runs of the export had other settings.
        FilesReplacedError: The server replaced files again and again while they were read.
        UnreadableError: The journal or the target cannot be reached.
    """
    report = progress or ignore
    session = session_of(spark)
    report(ExportProgress("planning"))
    target = target_of(session, options)
    last = target.last_state()
    last.check_settings(options.settings(), options.name)
    run = last.run + 1

    def write() -> tuple[History, int | None]:
        """Plan the run and write its rows aside, if it has any; return their number."""
        history = take_history(session, options.origin, last.places if last.run else None)
        # An accepted loss is stored, if necessary by a run without rows, so that the next run does not report it again.
        if not history.ranges and not history.passes_over_loss:
            return history, None
        with abandoned_on_failure(target):
            return history, write_aside(session, target, history.read(session), options, run, report)

    history, records = with_present_files(write)
    if records is None:
        clean_up(target, last.run)
        return ExportResult(None, 0, 0, target.shown)
    state = ExportState(run, options.settings(), history.places)
    with abandoned_on_failure(target):
        report(ExportProgress("publishing"))
        history.require_unchanged()
        target.publish(state)
    report(ExportProgress("published"))
    clean_up(target, state.run)
    return ExportResult(state.run, records, len(history.ranges), target.shown)
