"""`journal config`: the commented configuration file of the server."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from command_line.shipped_files import print_default_file


def config(*, default: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Print the commented configuration file, every setting at its default: `journal config --default`.

    Args:
        default: Print the defaults; required, since there is nothing else to print yet.
    """
    print_default_file("conf/journal.toml", program="journal", default=default)
