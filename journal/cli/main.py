"""The `journal` command: what commands there are, and the way from the arguments to an exit status.

The commands themselves live in modules of their own, which are imported when they are called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from journal.cli.boundary import UsageError, run_guarded


def build_app() -> App:
    """All commands, none of them imported yet."""
    app = App(
        name="journal",
        help="Durable storage service for a cluster of MQTT brokers: run it, write to it, read from it, look after it.",
        help_epilogue="`--debug` with any command prints the traceback of an error.",
        version=_version,
    )
    app.command("journal.cli.serve:serve", name="serve")
    shard = App(name="shard", help="Create, list and look after shards.")
    for name in ("create", "list", "show", "mode", "seal", "trim", "delete"):
        shard.command(f"journal.cli.shard:{name}_command", name=name)
    app.command(shard)
    for name in ("append", "read", "tail"):
        app.command(f"journal.cli.{name}:{name}", name=name)
    cursor = App(name="cursor", help="List, read and set named places in a shard.")
    for name in ("list", "get", "set"):
        cursor.command(f"journal.cli.cursor:{name}_command", name=name)
    app.command(cursor)
    for name in ("check", "dump", "bench"):
        app.command(f"journal.cli.{name}:{name}", name=name)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name).

    Returns:
        The exit status; see `journal.cli.boundary`.
    """
    debug = "--debug" in arguments
    tokens = [argument for argument in arguments if argument != "--debug"]

    def command() -> int:
        try:
            result = build_app()(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        except CycloptsError as error:
            raise UsageError(f"{error}; see `journal --help`") from error
        return result if isinstance(result, int) else 0

    return run_guarded(command, debug=debug)


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


def _version() -> str:
    from importlib.metadata import version

    return version("journal-engine")


if __name__ == "__main__":
    main()
