"""Which directories of a data directory may be file systems of their own.

Files get to their places by renames and hard links, which do not cross mounts: Parquet files go from ``sealing`` to
``sealed``, and a snapshot links to the files of ``log`` and ``sealed``. The journal and the store of the views are
written where they lie.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from shards.errors import DataDirectoryError

MOUNTABLE: Final = frozenset({"journal", "state"})

_TABLE: Final = "/proc/self/mountinfo"


def check_mounts(path: str) -> None:
    """Refuse a data directory of which a part lies on a file system of its own that has to lie on the same one.

    Where the system has no table of mounts (it is not Linux) nothing is refused.

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
                f"{mount} is a mount of its own; of a data directory only journal and state may be, since "
                f"files are renamed and linked between the others. Copy what lies there into {path}, unmount it, and "
                f"mount a file system at {path} as a whole"
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
