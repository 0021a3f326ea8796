"""Telling a full disk from a failed one: a write that found no space lost nothing, and may be tried again.

That holds for what makes files grow (writing, making a file or directory), as long as the bytes are still in memory.
It does not hold for a sync, which covers bytes of earlier writes as well. No sync belongs into `retriable_when_full`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from shards.errors import DiskFullError


@contextmanager
def retriable_when_full(directory: str) -> Iterator[None]:
    """Turn the error of a disk or quota that is full into one that may be tried again.

    Args:
        directory: Where space is needed; the error names it.

    Raises:
        DiskFullError: There is no space.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise disk_full(directory, error) from error


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
