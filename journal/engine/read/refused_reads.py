"""What readers are told when a file cannot be opened or read: an error with a name, and the way out.

A file that is gone is not refused: it may have been trimmed or sealed, and whoever asked looks again.
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
    """Name what goes wrong while a file is opened and read.

    Raises:
        FileNotFoundError: The file is gone; passed on.
        OverloadedError: The process or the machine is short of open files or memory; a later read may succeed.
        CorruptionError: The disk refused; the bytes cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise OverloadedError(
                f"{path} cannot be opened: {error.strerror}; let the process have more open files or memory "
                f"(LimitNOFILE of its unit, limits.max_connections), or read again later"
            ) from error
        raise CorruptionError(path, position, f"cannot be read: {error.strerror}") from error
