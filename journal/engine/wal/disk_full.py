"""Telling a full disk from a failed one: a write that found no space lost nothing, and may be tried again.

That holds for what makes files grow (writing, making a file or directory), as long as the bytes are still in memory.
It does not hold for a sync, which covers bytes of earlier writes as well. No sync belongs into `RetriableWhenFull`.
"""

from __future__ import annotations

import errno
import os
from types import TracebackType

from shards.errors import DiskFullError


class RetriableWhenFull:
    """Within its block the error of a disk or quota that is full becomes one that may be tried again.

    A class, since each group that is written enters it: a generator takes four times as long. It has no state, so one
    object serves any number of blocks.

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
    """Whether an error says that there is no space, on the file system or in its owner's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(directory: str, error: OSError) -> DiskFullError:
    """What callers are told when a directory's file system has no space left, or its owner none of the quota."""
    assert error.errno is not None
    return DiskFullError(
        f"{directory}: {os.strerror(error.errno)}; free some space there. Appends are taken again by themselves then; "
        f"reads go on"
    )
