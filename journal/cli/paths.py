"""`journal paths`, also as `journal-broker paths`: the configuration files and documents of an installation."""

from __future__ import annotations

from typing import Literal

from command_line.output import write_text
from command_line.shipped_files import DIRECTORIES, shipped_path


def paths(what: Literal["conf", "docs"] | None = None, /) -> None:
    """Print the paths of the shipped files: `conf` (configuration, units, alert rules, dashboard) and `docs`.

    Args:
        what: One of the two; only its path is printed, for scripts.
    """
    if what is not None:
        write_text(str(shipped_path(what)))
        return
    for name in DIRECTORIES:
        write_text(f"{name}  {shipped_path(name)}")
