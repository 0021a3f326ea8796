"""Why a store cannot be opened: its directory has lost a file, another process has it, or the system refuses it.

Here is nothing of RocksDB but what its messages mean.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NoReturn

from shards.errors import CorruptionError, DataDirectoryError, StorageFailedError, way_out

# Errors of the operating system while the store is opened whose cause can be removed.
_PUT_BACK: Final = (
    "If a file of it was removed, put it back and start again; if it is lost or damaged, restore a backup"
)
_TOLD = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def refuse_lost_directory(path: str) -> None:
    """Refuse a directory that has tables but not the file CURRENT: RocksDB would create a new store and delete them."""
    if not os.path.isdir(path) or os.path.exists(os.path.join(path, "CURRENT")):
        return
    tables = sorted(name for name in os.listdir(path) if name.endswith((".sst", ".log")))
    if tables:
        raise CorruptionError(
            os.path.join(path, "CURRENT"),
            0,
            f"the file is missing, but {len(tables)} data files such as {tables[0]} exist. {_PUT_BACK}",
        )


def raise_in_use(path: str, error: Exception) -> NoReturn:
    """Refuse a store that is open already.

    Raises:
        DataDirectoryError: It names the process.
    """
    raise DataDirectoryError(
        f"the store in {path} is in use by {_lock_holder(path)}; stop that process or choose another directory"
    ) from error


def raise_opening_error(path: str, error: Exception, text: str) -> NoReturn:
    """Turn what RocksDB or the system said when a store was opened into an error of ours.

    Args:
        text: What it said.

    Raises:
        DataDirectoryError: Another process has it, or the system refuses it.
        CorruptionError: A part of it is missing or damaged.
        StorageFailedError: It cannot be opened for another reason.
    """
    lowered = text.lower()
    if "lock" in lowered and ("hold by" in lowered or "temporarily unavailable" in lowered):
        raise_in_use(path, error)
    if "corrupt" in lowered or "no such file" in lowered:
        raise CorruptionError(path, 0, f"RocksDB reports: {text.rstrip('. ')}. {_PUT_BACK}") from error
    if isinstance(error, OSError) or _number_in(lowered):
        raise DataDirectoryError(
            f"the store in {path} cannot be opened: {text}; {_way_out(error)}, or choose another directory"
        ) from error
    raise StorageFailedError(f"the store in {path} cannot be opened: {text}") from error


def _number_in(text: str) -> int:
    """The errno whose message RocksDB passes on, among those with advice; 0 for any other."""
    return next((number for number in _TOLD if os.strerror(number).lower() in text), 0)


def _way_out(error: Exception) -> str:
    return way_out(error if isinstance(error, OSError) else OSError(_number_in(str(error).lower()), str(error)))


def _lock_holder(path: str) -> str:
    """Name the process that holds RocksDB's LOCK file.

    Read from /proc/locks, not by opening the file: closing any descriptor of it would release this process's lock.
    """
    try:
        inode = os.stat(os.path.join(path, "LOCK")).st_ino
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if len(fields) >= 6 and fields[5].endswith(f":{inode}"):
                    return "this process" if int(fields[4]) == os.getpid() else f"the process with pid {fields[4]}"
    except (OSError, ValueError):
        return "another process"
    return "another process"
