"""Exports: what is new in a journal since the last time, to files or a database, each run whole or not at all."""

from spark_export.export.options import ExportOptions, ValueAs
from spark_export.export.outcome import ExportConflictError, ExportError, ExportProgress, ExportResult
from spark_export.export.run import run_export

__all__ = [
    "ExportConflictError",
    "ExportError",
    "ExportOptions",
    "ExportProgress",
    "ExportResult",
    "ValueAs",
    "run_export",
]
