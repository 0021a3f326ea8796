"""Errors for files that cannot be opened or read, with the cause and what the operator can do.

A missing file is not translated: the segment may have been trimmed or converted, and the caller looks it up again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shards.errors import CorruptionError, OverloadedError

_SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


@contextmanager
def refusals_named(path: str, position: int = 0) -> Iterator[None]:
    """Translate the errors of opening and reading a file.

    Raises:
        FileNotFoundError: The file is missing; passed on.
        OverloadedError: The process or the machine is short of open files or memory; a later read may succeed.
        CorruptionError: The disk returned an error; the bytes cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise OverloadedError(
                f"{path} cannot be opened: {error.strerror}; allow the process more open files or memory "
                f"(LimitNOFILE of its unit, limits.max_connections), or read again later"
            ) from error
        raise CorruptionError(path, position, f"cannot be read: {error.strerror}") from error
