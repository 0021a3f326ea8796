"""`journal-broker config`: the commented configuration file of the broker and its bridges."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from command_line.shipped_files import print_default_file


def config(*, default: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Print the commented configuration file, every setting at its default: `journal-broker config --default`.

    Args:
        default: Print the defaults. Required, because there is nothing else to print yet.
    """
    print_default_file("conf/broker.toml", program="journal-broker", default=default)
