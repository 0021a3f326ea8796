"""What an export says: how far it is, what it did, and why it did nothing."""

from __future__ import annotations

from typing import Literal

import attrs

from spark_export.errors import SourceError


class ExportError(SourceError):
    """An export cannot be done as asked; its target is as before unless a subclass says otherwise."""


class ExportConflictError(ExportError):
    """Another run of the same export was faster; the target has that one and nothing of this."""


class UnconfirmedError(ExportError):
    """A drain published its run, but the queue's cursor was not moved behind it: the next drain does that."""


@attrs.frozen(slots=True)
class ExportProgress:
    """How far a run is.

    Attributes:
        step: ``planning`` (what is new), ``writing`` (aside, where nobody reads), ``publishing`` (the one step that
            makes it visible) and ``published``. A drain begins with ``waiting`` (for the queue's driver to stand
            aside) and ends with ``confirmed`` (nobody else gets these records).
        done: Tasks of Spark's that have ended, while writing.
        total: Tasks of Spark's known so far, while writing.
    """

    step: Literal["waiting", "planning", "writing", "publishing", "published", "confirmed"]
    done: int = 0
    total: int = 0


@attrs.frozen(slots=True)
class ExportResult:
    """What a run did.

    Attributes:
        run: Number of the run that was published; None if there was nothing new.
        records: How many records it added.
        shards: How many shards had something new.
        target: Where they are.
    """

    run: int | None
    records: int
    shards: int
    target: str


@attrs.frozen(slots=True)
class DrainResult:
    """What a drain did.

    Attributes:
        queue: Name of the cache queue.
        run: Number of the run that was published; None if nothing that is to be written waited.
        records: How many records it added.
        skipped: How many others had waited: they expired, were dropped for newer ones, or were in the memory of a
            server that went down.
        first_offset: Where it began.
        next_offset: Where the queue goes on.
        recovered: How many records an earlier run had published already; only the queue's cursor was moved over them.
        target: Where the records are.
    """

    queue: str
    run: int | None
    records: int
    skipped: int
    first_offset: int
    next_offset: int
    recovered: int
    target: str
