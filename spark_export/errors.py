"""The errors of the Spark side. Spark shows a user their text alone, so the text says all of it."""

from __future__ import annotations


class SourceError(Exception):
    """Root of what this package raises on purpose."""


class OptionError(SourceError):
    """An option is unknown, has a value that it cannot have, or does not go together with another."""


class DataLossError(SourceError):
    """Records that the query is to read are not there any more, and `failOnDataLoss` is on."""


class UnreadableError(SourceError):
    """A file, directory or server cannot be read: damaged, of another kind, or out of reach."""
