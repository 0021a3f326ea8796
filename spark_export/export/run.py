"""One run of an export: what is new is read, written aside, and published in one step."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from spark_export.errors import SourceError
from spark_export.export.file_target import FileTarget
from spark_export.export.jdbc_target import JdbcTarget
from spark_export.export.options import ExportOptions
from spark_export.export.outcome import ExportProgress, ExportResult
from spark_export.export.rows import shaped
from spark_export.export.state import ExportState
from spark_export.export.target import Target
from spark_export.history import History, take_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnProgress = Callable[[ExportProgress], None]

_SETTINGS: Final = {
    # The export must not depend on what the caller set for other purposes.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",
}
_ASK_EVERY_S: Final = 0.2


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
        DataLossError: Records were trimmed before they were exported, and that is to be an error.
        OptionError: The export was begun with other settings.
        UnreadableError: The journal or the target cannot be reached.
    """
    report = progress or _ignore
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    report(ExportProgress("planning"))
    target: Target = JdbcTarget(session, options) if options.format == "jdbc" else FileTarget(session, options)
    last = target.last_state()
    last.check_settings(options.settings(), options.name)
    history = take_history(session, options.origin, last.reached)
    if not history.ranges:
        return ExportResult(None, 0, 0, target.shown)
    state = ExportState(last.run + 1, options.settings(), history.reached)
    try:
        records = _write(session, target, history, options, state.run, report)
        report(ExportProgress("publishing"))
        target.publish(state)
    except BaseException:
        # The first error is the one to tell; what stays behind is removed by the next run.
        with suppress(SourceError):
            target.abandon()
        raise
    report(ExportProgress("published"))
    target.clean(state.run)
    return ExportResult(state.run, records, len(history.ranges), target.shown)


def _write(
    session: SparkSession, target: Target, history: History, options: ExportOptions, run: int, report: OnProgress
) -> int:
    """Write what is new aside; return how many records that is."""
    from pyspark.sql import Observation, functions

    written = Observation()
    rows = shaped(history.read(session), options).observe(written, functions.count(functions.lit(1)).alias("records"))
    try:
        with _reported_tasks(session, report):
            target.write(rows, run)
    except Exception as error:
        # Who publishes a run removes what others wrote for the same one, and then Spark misses files.
        if target.last_state().run >= run:
            raise target.conflict(run) from error
        raise
    return int(written.get["records"])


@contextmanager
def _reported_tasks(session: SparkSession, report: OnProgress) -> Iterator[None]:
    """Report how many tasks of the jobs that this thread starts have ended."""
    context = session.sparkContext
    group = f"journal-export-{uuid.uuid4().hex}"
    tracker = context.statusTracker()
    ended = threading.Event()

    def watch() -> None:
        last = None
        while not ended.wait(_ASK_EVERY_S):
            stages = [
                stage
                for job in tracker.getJobIdsForGroup(group)
                if (info := tracker.getJobInfo(job)) is not None
                for number in info.stageIds
                if (stage := tracker.getStageInfo(number)) is not None
            ]
            now = ExportProgress(
                "writing", sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
            )
            if now != last:
                report(now)
                last = now

    report(ExportProgress("writing"))
    before = context.getLocalProperty("spark.jobGroup.id")
    context.setLocalProperty("spark.jobGroup.id", group)
    watcher = threading.Thread(target=watch, name="export-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", before)  # type: ignore[arg-type]


def _ignore(_progress: ExportProgress) -> None:
    """Report to nobody."""
