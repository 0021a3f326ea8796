"""Progress, results and errors of exports."""

from __future__ import annotations

from typing import Literal

import attrs

from spark_export.errors import SourceError


class ExportError(SourceError):
    """An export cannot be done; its target is unchanged unless a subclass says otherwise."""


class ExportConflictError(ExportError):
    """Another run of the same export was first; the target has that run and nothing of this one."""


class UnconfirmedError(ExportError):
    """A drain published its run, but the queue's offset was not advanced: the next drain does that."""


@attrs.frozen(slots=True)
class ExportProgress:
    """Progress of a run.

    Attributes:
        step: ``planning`` (which records are new), ``writing`` (not visible to readers), ``publishing`` (the step that
            makes the run visible) and ``published``. A drain begins with ``waiting`` (for the queue's driver to give
            way) and ends with ``confirmed`` (the records have left the queue).
        done: Finished tasks of Spark, while writing.
        total: Tasks of Spark known so far, while writing.
    """

    step: Literal["waiting", "planning", "writing", "publishing", "published", "confirmed"]
    done: int = 0
    total: int = 0


@attrs.frozen(slots=True)
class ExportResult:
    """Result of a run.

    Attributes:
        run: Number of the run that was published; None if there was nothing new.
        records: How many records it added.
        shards: How many shards had something new.
        target: The target, for messages.
    """

    run: int | None
    records: int
    shards: int
    target: str


@attrs.frozen(slots=True)
class DrainResult:
    """Result of a drain.

    Attributes:
        queue: Name of the cache queue.
        run: Number of the run that was published; None if there were no records to write.
        records: How many records it added.
        skipped: How many others had waited: they expired, were dropped for newer ones, or were in the memory of a
            server that went down.
        first_offset: Where it began.
        next_offset: Where the queue continues.
        recovered: How many records an earlier run had published already; only the queue's offset was advanced.
        target: The target, for messages.
    """

    queue: str
    run: int | None
    records: int
    skipped: int
    first_offset: int
    next_offset: int
    recovered: int
    target: str
