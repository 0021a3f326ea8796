"""The `journal` command: the list of commands, and the way from the arguments to an exit status.

The commands are in modules of their own, which are imported when they are called. Packages above this one add more, as
entry points of the group `journal.commands`: a word, and the table of the commands after it.

Modules that take long to import are imported in functions here, so that a server handles signals from its first moment
on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from command_line.boundary import run_guarded
from command_line.interpreter import prepare_interpreter
from journal.stop_signals import note_signals

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from cyclopts import App

# First lines of the functions' docstrings, listed here to avoid importing them (a test compares the two).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "serve": (
        "journal.cli.serve:serve",
        "Run the server; print `ready` with its addresses once it accepts; stop cleanly on SIGTERM or Ctrl-C.",
    ),
    "append": (
        "journal.cli.append:append",
        "Append the lines of stdin to a shard, a record a line; print the count and the last offset acknowledged.",
    ),
    "read": ("journal.cli.read:read", "Print a shard's records, a payload a line."),
    "tail": (
        "journal.cli.tail:tail",
        "Print `topic payload` lines of all matching shards, also of new ones, until interrupted.",
    ),
    "shard create": ("journal.cli.shard:create_command", "Create a shard."),
    "shard list": ("journal.cli.shard:list_command", "List shards, sorted by name."),
    "shard show": ("journal.cli.shard:show_command", "Show one shard with its segments."),
    "shard mode": (
        "journal.cli.shard_changes:mode_command",
        "Switch a shard between memory and file mode while it is in use.",
    ),
    "shard set": (
        "journal.cli.shard_changes:set_command",
        "Change the retention and segment size of a shard; options that are not given change nothing.",
    ),
    "shard roll": ("journal.cli.convert:roll_command", "Close the active segments of shards."),
    "shard convert": (
        "journal.cli.convert:convert_command",
        "Close the active segments of shards, and wait until all closed segments are Parquet files.",
    ),
    "shard trim": ("journal.cli.shard_changes:trim_command", "Drop a shard's records below an offset, permanently."),
    "shard delete": ("journal.cli.shard_changes:delete_command", "Delete a shard with all its records and cursors."),
    "cursor list": ("journal.cli.cursor:list_command", "List a shard's cursors."),
    "cursor get": ("journal.cli.cursor:get_command", "Print the offset of one cursor."),
    "cursor set": ("journal.cli.cursor:set_command", "Set a cursor durably; create it if it does not exist."),
    "cluster status": (
        "journal.cli.cluster:status_command",
        "Show which server owns a store that several servers share, the last checkpoint, and the lag of each server.",
    ),
    "config": (
        "journal.cli.serve:config",
        "Print every setting at its default (`--default`), or check a configuration file (`--check FILE`).",
    ),
    "paths": (
        "journal.cli.serve:paths",
        "Print the paths of the shipped files: `conf` (configuration, units, alert rules, dashboard) and `docs`.",
    ),
    "passwd": (
        "journal.cli.credentials:passwd",
        "Set a user's password in a password file, or remove the user; the password comes from the terminal or stdin.",
    ),
    "token": (
        "journal.cli.credentials:token",
        "Create a token and add its hash to a file, or remove a user's tokens; the token is printed only once.",
    ),
    "backup": (
        "journal.cli.backup:backup",
        "Copy a data directory into a backup directory, even while its server runs; only new data is copied.",
    ),
    "restore": (
        "journal.cli.backup:restore",
        "Create a data directory from a backup, and compare every file with its digest.",
    ),
    "check": (
        "journal.cli.check:check",
        "Check a whole data or backup directory offline and list its damage; the exit status is 1 if there is any.",
    ),
    "compact": (
        "journal.cli.check:compact",
        "Remove data that no record of a data directory needs any more, and rewrite its views without deleted entries.",
    ),
    "dump": (
        "journal.cli.dump:dump",
        "Print the content of a log, index, journal or sealed Parquet file, an item a line, and check its checksums.",
    ),
    "bench": (
        "journal.cli.bench:bench",
        "Measure appends and reads with shards that are created for it and deleted afterwards.",
    ),
    "bench trace": (
        "journal.cli.bench_trace:bench_trace",
        "Measure the hops of a message from append to delivery, at parts of the highest rate.",
    ),
}
RENAMED: Final = {"shard seal": "shard convert"}
"""New words of commands, by the old ones."""

_PURPOSE: Final = "Durable storage service for a cluster of MQTT brokers: run, write, read and manage it."
_GROUPS: Final = {
    "shard": "Create, list and manage shards.",
    "cursor": "List, read and set named positions in a shard.",
    "cluster": "Look at a store that several servers share.",
}

ADDED_GROUP: Final = "journal.commands"
"""Group of the entry points with which packages add commands: word -> `command_line.app.AddedCommands`."""

# Help of words that the project's own packages add, without importing them (a test compares the two).
ADDED_HELP: Final = {"queue": "Show cache queues; pause, drain and empty them."}


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name).

    Returns:
        The exit status; see `command_line.boundary`.
    """
    word = _first_word(arguments)

    def with_added_commands() -> int:
        from command_line.app import run_app
        from journal.cli.connection import explain

        return run_app(_app_for(word), arguments, explain=explain, renames=RENAMED)

    # Loading added commands may fail as well, and is reported in the same way.
    return run_guarded(with_added_commands, program="journal", debug="--debug" in arguments)


def _app_for(word: str) -> App:
    """The program, with the added commands that a command line with this first word may use."""
    from importlib.metadata import entry_points

    from command_line.app import build_app, load_commands, named

    if any(word == command.split()[0] for command in COMMANDS):
        return build_app("journal", _PURPOSE, COMMANDS, _GROUPS)
    added = list(entry_points(group=ADDED_GROUP))
    groups = {**_GROUPS, **{each.name: _told(each) for each in added}}
    commands = dict(COMMANDS)
    if called := named(word, added):
        table = load_commands("journal", called)
        groups[word] = table.help_line
        commands |= {f"{word} {second}": command for second, command in table.commands.items()}
    return build_app("journal", _PURPOSE, commands, groups)


def _first_word(arguments: Sequence[str]) -> str:
    return next((argument for argument in arguments if argument != "--debug"), "")


def _told(added: EntryPoint) -> str:
    return ADDED_HELP.get(added.name, f"Added by {added.module.partition('.')[0]}.")


def main() -> None:
    """Entry point of the installed command."""
    prepare_interpreter()
    if _first_word(sys.argv[1:]) == "serve":
        note_signals()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
