"""Errors of the Spark packages. Spark shows only their text to the user, so the text has all information."""

from __future__ import annotations

import re
from typing import Final

_PARAMETER: Final = re.compile(r"(?i)((?:password|passwd|passphrase|pwd|secret[\w.]*|token)\s*=\s*)[^&;,\s)]+")
_USER: Final = re.compile(r"(jdbc:(?:[a-z0-9+]+:)+(?://)?)[^@/:\s;?]+[:/][^@\s;?]+@")
_ODD_PORT: Final = re.compile(r"(jdbc:(?:[a-z0-9+]+:)+//[^/:,\s\[]*):(?![0-9])[^/\s]*")
HIDDEN: Final = "***"


def without_secrets(text: str) -> str:
    """A text, such as a JDBC URL or the message of a driver, without the user and passwords of URLs in it."""
    text = _PARAMETER.sub(rf"\1{HIDDEN}", text)
    return _ODD_PORT.sub(rf"\1:{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))


def is_secret(name: str) -> bool:
    """Whether the value of a property or setting of this name is a secret."""
    return without_secrets(f"{name}=x") != f"{name}=x"


class SourceError(Exception):
    """Base class of the errors of this package."""


class OptionError(SourceError):
    """An option is unknown, has an invalid value, or conflicts with another one."""


class DataLossError(SourceError):
    """Records that the query is to read do not exist any more, and `failOnDataLoss` is on."""


class QueryError(SourceError):
    """A query is not valid, or it cannot be answered."""


class UnreadableError(SourceError):
    """A file, directory or server cannot be read: damaged, of another kind, or unreachable."""


class FilesReplacedError(UnreadableError):
    """The server has replaced sealed files between the plan of a query and its reading; a new plan has the new files.

    Attributes:
        path: One of the files.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path
