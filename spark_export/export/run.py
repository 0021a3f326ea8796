"""One run of an export: what is new is read, written aside, and published in one step."""

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
from spark_export.history import take_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_export(spark: SparkSession, options: ExportOptions, *, progress: OnProgress | None = None) -> ExportResult:
    """Add to the target what is new in the journal since the last run of this export.

    A run that fails or is killed, at whatever point, leaves the target as it was or complete, and the next run goes on
    from there: no record is missing and none comes twice. Of two runs at a time one is published.

    Args:
        spark: A session whose driver runs in this process.
        options: The export.
        progress: Called, from a thread too, as the run goes on.

    Raises:
        ExportConflictError: Another process published the same run first.
        ExportError: The target cannot be exported to.
        DataLossError: Records were trimmed before they were exported, a shard was deleted, or the store was set back,
            and that is to be an error.
        OptionError: The export was begun with other settings.
        UnreadableError: The journal or the target cannot be reached.
    """
    report = progress or ignore
    session = session_of(spark)
    report(ExportProgress("planning"))
    target = target_of(session, options)
    last = target.last_state()
    last.check_settings(options.settings(), options.name)
    history = take_history(session, options.origin, last.places if last.run else None)
    # A loss that is passed over is remembered, by a run with no rows if it must be: the next one need not ask again.
    if not history.ranges and not history.passes_over_loss:
        return ExportResult(None, 0, 0, target.shown)
    state = ExportState(last.run + 1, options.settings(), history.places)
    with abandoned_on_failure(target):
        records = write_aside(session, target, history.read(session), options, state.run, report)
        report(ExportProgress("publishing"))
        history.require_unchanged()
        target.publish(state)
    report(ExportProgress("published"))
    clean_up(target, state.run)
    return ExportResult(state.run, records, len(history.ranges), target.shown)
