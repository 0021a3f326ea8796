"""Interface of export targets. `file_target` implements directories, `jdbc_target` databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spark_export.export.outcome import ExportConflictError
from spark_export.export.state import ExportState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Target(Protocol):
    """A target that has all of a run or nothing of it."""

    @property
    def shown(self) -> str:
        """The target, for messages; without passwords."""

    def last_state(self) -> ExportState:
        """The state after the last published run."""

    def write(self, rows: DataFrame, run: int) -> int:
        """Write the rows of a run where no reader sees them; return their number.

        They are counted where they are written: there Spark counts a repeated task once, but more than once before a
        shuffle.
        """

    def publish(self, state: ExportState) -> None:
        """Make what was written visible and the state durable, both or neither.

        Rows that repeated tasks wrote are visible once.

        Raises:
            ExportError: The outcome is unknown, or the written rows are not those that the tasks reported.
            ExportConflictError: Another run of this number was published meanwhile.
        """

    def conflict(self, run: int) -> ExportConflictError:
        """The error for a run that another process published first."""

    def abandon(self) -> None:
        """Remove the unpublished rows of this run. Called after an error; a second error here is ignored."""

    def clean(self, run: int) -> None:
        """Remove the unpublished rows of runs up to this number. They can never be published any more."""
