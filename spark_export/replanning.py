"""Planning again when the server has replaced files between the plan of a query and its reading.

The server writes shared files again and removes the old ones, at the earliest some minutes after they left the Delta
table. A query that takes longer, or has a plan that old, misses them: it is planned again, with the files of now.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final, TypeVar

from spark_export.errors import FilesReplacedError
from spark_export.sealed_files import parse_shared

ATTEMPTS: Final = 3
"""A query is planned at most so many times."""

_Result = TypeVar("_Result")
_LOGGER: Final = logging.getLogger(__name__)
_MISSING: Final = re.compile(
    r"\[(?:FAILED_READ_FILE\.FILE_NOT_EXIST|PATH_NOT_FOUND)\][^\n]*?(\S+\.parquet)"
    # DuckDB: for a file that is named and not there, and for one that was there when the query was bound.
    r"|IO Error: No files found that match the pattern \"([^\"\n]+\.parquet)\""
    r"|IO Error: Cannot open file \"([^\"\n]+\.parquet)\": No such file or directory"
)


def with_present_files(work: Callable[[], _Result]) -> _Result:
    """Plan and read a query; if a sealed file was replaced in between, do it again, up to `ATTEMPTS` times in all.

    Args:
        work: Plans and reads. It has no lasting effect if it fails.

    Raises:
        FilesReplacedError: Files were replaced every time.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except Exception as error:
            missing = replaced_file(error)
            if missing is None:
                raise
            if attempt == ATTEMPTS:
                raise FilesReplacedError(
                    f"{missing} was removed while the query ran, and so were other files in {ATTEMPTS} attempts: the "
                    "server had replaced them; run the query again, select fewer records with a condition on `date` or "
                    "with `topics`, or raise `conversion.delta_grace_s` of the server above the time of the query",
                    missing,
                ) from error
            _LOGGER.info("%s was replaced; the query is planned again", missing)
    raise AssertionError("the last attempt returns or raises")


def replaced_file(error: BaseException) -> str | None:
    """The sealed file that a query has missed because of its replacement; None for any other error."""
    if isinstance(error, FilesReplacedError):
        return error.path
    found = _MISSING.search(str(error))
    if found is None:
        return None
    path = next(group for group in found.groups() if group)
    # Other files that the text of a query names are not replaced.
    return path if parse_shared(path) is not None else None
