"""The `journal-spark` command and its subcommands, which are in modules of their own, imported when called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from command_line.boundary import run_guarded
from command_line.interpreter import prepare_interpreter

PROGRAM: Final = "journal-spark"

# First lines of the functions' docstrings, here so that listing them imports no command (a test compares the two).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "sql": ("spark_export.cli.sql:sql", "Query the journal in SQL: its records are the view `records`."),
    "stats": (
        "spark_export.cli.stats:stats",
        "Show each shard, or each day: records, bytes, times, gaps, files, what can be compacted. Needs no Spark.",
    ),
    "export": (
        "spark_export.cli.export:export",
        "Add the records since the last run to files or a database; each run is added completely or not at all.",
    ),
    "drain": (
        "spark_export.cli.drain:drain",
        "Move the records of a cache queue to files or a database.",
    ),
    "stream": (
        "spark_export.cli.stream:stream",
        "Add appended records to files as they come, each record once; Ctrl-C ends it.",
    ),
    "tables": (
        "spark_export.cli.tables:tables",
        "Keep declared tables up to date as Delta tables, each record once; Ctrl-C ends it. Needs no Spark.",
    ),
}
_PURPOSE: Final = "The journal's history in Spark: query it in SQL, export it, follow it."


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name).

    Returns:
        The exit status; see `command_line.boundary`.
    """

    def command() -> int:
        # The command-line library may be missing. Imported here, its absence is reported like any other error.
        from command_line.app import build_app, run_app
        from spark_export.cli.failures import explain

        return run_app(build_app(PROGRAM, _PURPOSE, COMMANDS), arguments, explain=explain)

    return run_guarded(command, program=PROGRAM, debug="--debug" in arguments)


def main() -> None:
    """Entry point of the installed command."""
    prepare_interpreter()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
