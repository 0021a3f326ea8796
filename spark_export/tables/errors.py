"""Errors of typed tables."""

from __future__ import annotations

from spark_export.errors import SourceError


class TableError(SourceError):
    """A table cannot be kept up to date, and trying again does not help."""


class DeclarationChangedError(TableError):
    """The declaration of a table differs from the one with which its rows were made."""


class TableConflictError(TableError):
    """Another process writes to the table."""


class StoppingError(SourceError):
    """The batch was abandoned because the process is to stop; nothing of it is in the table."""
