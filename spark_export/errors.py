"""Errors of the Spark packages. Spark shows only their text to the user, so the text has all information."""

from __future__ import annotations


class SourceError(Exception):
    """Base class of the errors of this package."""


class OptionError(SourceError):
    """An option is unknown, has an invalid value, or conflicts with another one."""


class DataLossError(SourceError):
    """Records that the query is to read do not exist any more, and `failOnDataLoss` is on."""


class UnreadableError(SourceError):
    """A file, directory or server cannot be read: damaged, of another kind, or unreachable."""
