"""Where a data directory lies: mounts in it, and other users of the machine who can reach its content.

Files and directories are created for their owner alone, whatever the umask (`shards.seams.file_system`). Those of
earlier versions, and directories that an operator made, may be open to others.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from shards.errors import DataDirectoryError

MOUNTABLE: Final = frozenset({"journal", "state"})

_TABLE: Final = "/proc/self/mountinfo"

_PARTS: Final = ("journal", "log", "sealed", "state")
_CLASSES: Final = (("all users", 0), ("its group", 3))


def check_mounts(path: str) -> None:
    """Refuse a data directory in which a directory is a separate mount that must be on the file system of the others.

    Files are moved by renames and hard links, which do not cross mounts: Parquet files go from ``sealing`` to
    ``sealed``, and a snapshot links to the files of ``log`` and ``sealed``. The journal and the store of the views are
    written in place.

    On a system without a table of mounts (not Linux) nothing is refused.

    Raises:
        DataDirectoryError: There is such a mount.
    """
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            text = table.read()
    except FileNotFoundError:
        return
    real = os.path.realpath(path)
    for mount in mounts_below(real, text):
        name = mount[len(real) + 1 :].partition("/")[0]
        if name not in MOUNTABLE:
            raise DataDirectoryError(
                f"{mount} is a mount of its own. In a data directory only journal and state may be mounts, as files "
                f"are renamed and linked between the others. Copy its content into {path}, unmount it, and mount a "
                f"file system at {path} as a whole"
            )


def mounts_below(path: str, table: str) -> Iterator[str]:
    """The mount points below an absolute path.

    Args:
        path: Without symbolic links.
        table: Text as in /proc/self/mountinfo: the fifth field of a line is the mount point, with octal escapes.
    """
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            mount = re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), fields[4])
            if mount.startswith(f"{path}/"):
                yield mount


def open_to_others(path: str) -> str:
    """Which other users can reach a data directory, and the way out; empty if none can."""
    top = _mode(path)
    parts = [_mode(os.path.join(path, name)) for name in _PARTS]
    for who, shift in _CLASSES:
        may_enter = top >> shift & stat.S_IXOTH
        may_replace = top >> shift & stat.S_IWOTH
        if may_enter and (may_replace or any(mode >> shift & stat.S_IRWXO for mode in parts)):
            return (
                f"data directory {path} is open to {who} of the machine (mode {top:04o}): they can read or replace "
                f"what is stored; close it with `chmod -R go= {path}`"
            )
    return ""


def _mode(path: str) -> int:
    """Permission bits; none for what is not there or cannot be looked at, which the start reports in its own way."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0
