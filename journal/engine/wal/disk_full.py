"""Telling a full disk from a failed one: a write that found no space lost nothing, and may be repeated.

That holds for operations that make files grow (writing, creating a file or directory), as long as the bytes are still
in memory. It does not hold for a sync, which covers bytes of earlier writes as well: do not sync in
`RetriableWhenFull`.
"""

from __future__ import annotations

import errno
import os
from types import TracebackType

from shards.errors import DiskFullError


class RetriableWhenFull:
    """Translates the error of a full disk or quota in its block into `DiskFullError`, after which a retry is possible.

    A class rather than a generator, which would take four times as long: each group that is written enters it. It has
    no state, so one object can be used for any number of blocks.

    Args:
        directory: Where space is needed; the error names it.

    Raises:
        DiskFullError: There is no space.
    """

    __slots__ = ("_directory",)

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and isinstance(error, OSError) and is_full(error):
            raise disk_full(self._directory, error) from error


def is_full(error: OSError) -> bool:
    """Whether an error means that there is no space, on the file system or in the user's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(directory: str, error: OSError) -> DiskFullError:
    """The error for a directory whose file system has no space left, or whose owner has used up the quota."""
    assert error.errno is not None
    return DiskFullError(
        f"{directory}: {os.strerror(error.errno)}; free some space there. Appends are then accepted again without a "
        f"restart; reads continue"
    )
