"""A directory that is held open, and what is found later under its path.

A path means another directory as soon as the one that was opened is unmounted, moved or replaced. What is written by
path would then be divided between two directories, neither of which is complete. On Linux the path of a descriptor
always means the directory that was opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from typing import Final

_DESCRIPTORS = "/proc/self/fd"

_log = logging.getLogger(__name__)


class HeldDirectory:
    """A directory that stays open until `close`, or until the object is freed.

    Args:
        path: Of the directory, which exists.

    Attributes:
        path: The same.
        lasting_path: It means this directory, also after `path` means another one or none. Only this process can use
            it, and only while the directory is open. Equal to `path` where the system offers none.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        found = os.fstat(self._descriptor)
        self._device, self._inode = found.st_dev, found.st_ino
        lasting_path = f"{_DESCRIPTORS}/{self._descriptor}"
        self.lasting_path: Final = lasting_path if os.path.isdir(lasting_path) else path

    @property
    def found_instead(self) -> str:
        """What is under `path` in place of the directory that was opened, in words; empty if it is that directory."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return "nothing is there"
        except OSError as error:
            return f"it cannot be reached: {error.strerror}"
        if (found.st_dev, found.st_ino) == (self._device, self._inode):
            return ""
        if not stat.S_ISDIR(found.st_mode):
            return "something is there that is not a directory"
        where = "" if found.st_dev == self._device else " of another file system"
        return f"{'an empty' if _is_empty(self.path) else 'another'} directory{where} is there"

    def with_path(self, text: str) -> str:
        """A text of a library, for people: it names the directory by `path`."""
        return text.replace(self.lasting_path, self.path)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class OwnedDirectory(HeldDirectory):
    """A held directory of one user: another one, in this process or in another, cannot own it at the same time.

    It is released by `release`, or when it is closed.

    Raises:
        BlockingIOError: It is owned already.
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            # Some network file systems lock no directories.
            _log.info("%s is not locked against a second use in this process: %s", path, error)

    def release(self) -> None:
        """Let others own it. `lasting_path` can be used further."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def replaced_text(path: str, found_instead: str) -> str:
    """The error for a directory that is not under its path any more, with the way out."""
    return (
        f"{path} is not the directory that was opened: {found_instead}. It was moved, unmounted or replaced while it "
        f"was in use. What was acknowledged is in the directory that was opened, and nothing more is written. Stop "
        f"the server, put that directory back under its name or mount it again, and start again"
    )


def _is_empty(path: str) -> bool:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return next(entries, None) is None
    return False
