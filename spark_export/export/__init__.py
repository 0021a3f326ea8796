"""Exports of new records of a journal, or of the records of a cache queue, to files or a database.

Each run is published completely or not at all.
"""

from spark_export.export.drain import run_drain
from spark_export.export.options import ExportOptions, ValueAs
from spark_export.export.outcome import (
    DrainResult,
    ExportConflictError,
    ExportError,
    ExportProgress,
    ExportResult,
    UnconfirmedError,
)
from spark_export.export.run import run_export

__all__ = [
    "DrainResult",
    "ExportConflictError",
    "ExportError",
    "ExportOptions",
    "ExportProgress",
    "ExportResult",
    "UnconfirmedError",
    "ValueAs",
    "run_drain",
    "run_export",
]
