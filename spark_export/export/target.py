"""What a run needs of the place it exports to. Directories are `file_target`, databases `jdbc_target`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spark_export.export.outcome import ExportConflictError
from spark_export.export.state import ExportState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Target(Protocol):
    """A place that is either as before a run, or has all of it."""

    @property
    def shown(self) -> str:
        """Where it is, for people; without passwords."""

    def last_state(self) -> ExportState:
        """What the last run that was published left."""

    def write(self, rows: DataFrame, run: int) -> int:
        """Write the rows of a run aside, where no reader sees them; return how many these are.

        They are counted where they are written: Spark counts a task that is tried again once there, and more than once
        before a shuffle.
        """

    def publish(self, state: ExportState) -> None:
        """Make what was written visible and the state durable, both or neither.

        What tasks wrote that were tried again is visible once.

        Raises:
            ExportError: It is not known whether that was done, or what was written is not what the tasks told.
            ExportConflictError: Another run of that number was published meanwhile.
        """

    def conflict(self, run: int) -> ExportConflictError:
        """What to raise when another process published the run first."""

    def abandon(self) -> None:
        """Remove what this run wrote aside. Called after a failure, and then what it raises is secondary."""

    def clean(self, run: int) -> None:
        """Remove what runs up to this one left aside. They can never be published any more."""
