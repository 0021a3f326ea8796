"""`journal config` and `journal paths`: the commented configuration file, and where the shipped files are."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from command_line.output import write_text
from command_line.shipped_files import DIRECTORIES, print_default_file, shipped_path


def config(*, default: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Print the commented configuration file, every setting at its default: `journal config --default`.

    Args:
        default: Print the defaults; required, since there is nothing else to print yet.
    """
    print_default_file("conf/journal.toml", program="journal", default=default)


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
