"""Whether other users of the machine can reach the content of a data directory.

Files and directories are created for their owner alone, whatever the umask (`shards.seams.file_system`). Those of
earlier versions, and directories that an operator made, may be open to others.
"""

from __future__ import annotations

import os
import stat
from typing import Final

_PARTS: Final = ("journal", "log", "sealed", "state")
_CLASSES: Final = (("all users", 0), ("its group", 3))


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
