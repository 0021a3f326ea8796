"""Advice about errors of the operating system, by errno, for error messages."""

from __future__ import annotations

import errno
from typing import Final

_FREE_SPACE: Final = "free space on its file system"
_FREE_QUOTA: Final = "free space, or raise the disk quota of the user of this process"
_PERMISSION: Final = "give the user of this process permission to read and write it"
_READ_ONLY: Final = "its file system is mounted read-only: mount it for writing"
_DISK: Final = "its disk or file system has failed: see the kernel's log (dmesg), and restore a backup if data is lost"
_DESCRIPTORS: Final = "allow more open files (ulimit -n, LimitNOFILE)"

_ADVICE: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_QUOTA,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _READ_ONLY,
    errno.EIO: _DISK,
    errno.EUCLEAN: _DISK,
    errno.ENOENT: "create the directory, or mount its file system",
    errno.ENOTDIR: "a part of the path is a file: name a directory",
    errno.EEXIST: "a part of the path is a file: name a directory",
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
}


def way_out(error: OSError) -> str:
    """What the user can do about the error, without a full stop."""
    return _ADVICE.get(error.errno or 0, "check its disk and its permissions")
