"""A directory that is held open, for a library that opens and creates files in it by their paths, whenever it likes.

A path means another directory as soon as the one that was opened is unmounted or moved. What such a library keeps would
then be divided between two directories, neither of which is complete. On Linux the path of a descriptor always means
the directory that was opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from typing import Final

_DESCRIPTORS = "/proc/self/fd"

_log = logging.getLogger(__name__)


class HeldDirectory:
    """A directory of one user: another one, in this process or in another, cannot hold it at the same time.

    It is released by `release`, or when the object is freed.

    Args:
        path: Of the directory, which exists.

    Attributes:
        path: The same.
        lasting_path: It means this directory, also after `path` means another one or none. Only this process can use
            it, and only until the object is freed. Equal to `path` where the system offers none.

    Raises:
        BlockingIOError: It is held already.
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            # Some network file systems lock no directories.
            _log.info("%s is not locked against a second use in this process: %s", path, error)
        self._identity = _identity(os.fstat(self._descriptor))
        lasting_path = f"{_DESCRIPTORS}/{self._descriptor}"
        self.lasting_path: Final = lasting_path if os.path.isdir(lasting_path) else path

    @property
    def is_in_place(self) -> bool:
        """Whether `path` means the directory that was opened."""
        try:
            return _identity(os.stat(self.path)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def with_path(self, text: str) -> str:
        """A text of the library, for people: it names the directory by `path`."""
        return text.replace(self.lasting_path, self.path)

    def release(self) -> None:
        """Let others hold it. `lasting_path` can be used further."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _identity(found: os.stat_result) -> tuple[int, int]:
    """Which directory it is, by file system and inode."""
    return found.st_dev, found.st_ino
