"""What an export says: how far it is, what it did, and why it did nothing."""

from __future__ import annotations

from typing import Literal

import attrs

from spark_export.errors import SourceError


class ExportError(SourceError):
    """An export cannot be done as asked; its target is as before."""


class ExportConflictError(ExportError):
    """Another run of the same export was faster; the target has that one and nothing of this."""


@attrs.frozen(slots=True)
class ExportProgress:
    """How far a run is.

    Attributes:
        step: ``planning`` (what is new), ``writing`` (aside, where nobody reads), ``publishing`` (the one step that
            makes it visible) and ``published``.
        done: Tasks of Spark's that have ended, while writing.
        total: Tasks of Spark's known so far, while writing.
    """

    step: Literal["planning", "writing", "publishing", "published"]
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
