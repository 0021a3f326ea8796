"""Progress of Spark on a terminal: finished tasks of those known so far, once a command has run for two seconds."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from spark_export.export import ExportProgress

_PATIENCE_S: Final = 2.0
_INTERVAL_S: Final = 0.25


@contextmanager
def task_progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Show progress on stderr while the block runs, if stderr is a terminal and it takes long enough.

    Args:
        spark: The session that does the work, in the thread that enters the context.
        what: Description of the work.
    """
    if not sys.stderr.isatty():
        yield
        return
    context = spark.sparkContext
    group = f"journal-spark-{uuid.uuid4()}"
    context.setJobGroup(group, what, interruptOnCancel=True)
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, group, what, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def count_tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Finished tasks, and known tasks, of all jobs of a group so far. Later jobs add to the second number."""
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        if info is None:
            continue
        begun = info.status != "RUNNING"
        # From the last stage back: a stage that has not begun although a later one has is skipped, its results existed.
        for found in map(tracker.getStageInfo, sorted(info.stageIds, reverse=True)):
            if found is None:
                continue
            begun = begun or found.numCompletedTasks + found.numActiveTasks > 0
            done += found.numCompletedTasks
            total += found.numTasks if not begun or found.numCompletedTasks + found.numActiveTasks else 0
    return done, total


@contextmanager
def run_display() -> Iterator[Callable[[ExportProgress], None]]:
    """Show the present step of a run, and Spark's tasks while it writes, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _progress: None
        return
    with task_bar() as display:
        task = display.add_task("planning", total=None)

        def show(progress: ExportProgress) -> None:
            display.update(task, description=progress.step, completed=progress.done, total=progress.total or None)

        yield show


def task_bar() -> Progress:
    """A display of steps and their tasks on stderr; it disappears at the end of its context."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _watch(context: SparkContext, group: str, what: str, over: threading.Event) -> None:
    if over.wait(_PATIENCE_S):
        return
    tracker = context.statusTracker()
    with task_bar() as display:
        task = display.add_task(what, total=None)
        while not over.wait(_INTERVAL_S):
            done, total = count_tasks(tracker, group)
            display.update(task, completed=done, total=total or None)
