"""Writing the rows of a run, with reports about its tasks, and cancellation: common to all kinds of runs."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from spark_export.errors import SourceError
from spark_export.export.file_target import FileTarget
from spark_export.export.jdbc_target import JdbcTarget
from spark_export.export.options import ExportOptions
from spark_export.export.outcome import ExportProgress
from spark_export.export.rows import shaped
from spark_export.export.target import Target
from spark_export.export.typed_rows import typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OnProgress = Callable[[ExportProgress], None]

_LOGGER: Final = logging.getLogger(__name__)
_SETTINGS: Final = {
    # The export must not depend on the caller's settings.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",
}
_ASK_EVERY_S: Final = 0.2


class Permission(Protocol):
    """Something that a run needs until it is published, and may lose, such as the lease of a queue."""

    @property
    def is_lost(self) -> bool:
        """Whether it is known to be lost; called often by another thread."""

    def require(self) -> None:
        """Return if the run may be published now; raise an error with the reason otherwise."""


def session_of(spark: SparkSession) -> SparkSession:
    """A session with the settings of exports, separate from the caller's."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return session


def target_of(session: SparkSession, options: ExportOptions) -> Target:
    """The target of an export.

    Raises:
        ExportError: It cannot be exported to.
        UnreadableError: It cannot be reached.
    """
    return JdbcTarget(session, options) if options.format == "jdbc" else FileTarget(session, options)


@contextmanager
def abandoned_on_failure(target: Target) -> Iterator[None]:
    """On an error inside the context, remove the unpublished rows from the target."""
    try:
        yield
    except BaseException:
        # The first error is raised; the next run removes remaining rows.
        with suppress(SourceError):
            target.abandon()
        raise


def clean_up(target: Target, run: int) -> None:
    """Remove what a published run and those before it wrote aside; errors are logged.

    A process that is killed after it has published its run leaves them there. So each run does this, also one that
    finds no records.
    """
    try:
        target.clean(run)
    except SourceError as error:
        _LOGGER.warning("run %d is published, its temporary data is left to the next run: %s", run, error)


def write_aside(
    session: SparkSession,
    target: Target,
    records: DataFrame,
    options: ExportOptions,
    run: int,
    report: OnProgress,
    permission: Permission | None = None,
) -> int:
    """Write records where no reader of the target sees them; return their number.

    Args:
        session: See `session_of`.
        target: The target.
        records: With the columns of the data source.
        options: The export.
        run: Number of the run.
        report: Called from other threads, too.
        permission: Required until the end; Spark's jobs are cancelled when it is lost.

    Raises:
        ExportConflictError: Another process published the same run meanwhile.
    """
    rows = typed(records, options) if options.fields else shaped(records, options)
    try:
        with _watched_tasks(session, report, permission):
            return target.write(rows, run)
    except Exception as error:
        if permission is not None and permission.is_lost:
            # The jobs were cancelled because of it.
            permission.require()
        # A process that publishes a run removes what others wrote for the same run, and then Spark misses files.
        if target.last_state().run >= run:
            raise target.conflict(run) from error
        raise


@contextmanager
def _watched_tasks(session: SparkSession, report: OnProgress, permission: Permission | None) -> Iterator[None]:
    """Report finished tasks of the jobs that this thread starts, and cancel the jobs if the permission is lost."""
    context = session.sparkContext
    group = f"journal-export-{uuid.uuid4().hex}"
    tracker = context.statusTracker()
    ended = threading.Event()

    def watch() -> None:
        last = None
        while not ended.wait(_ASK_EVERY_S):
            if permission is not None and permission.is_lost:
                # Repeatedly: one job of a query begins when another has ended.
                context.cancelJobGroup(group)
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


def ignore(_progress: ExportProgress) -> None:
    """Do not report."""
