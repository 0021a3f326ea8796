"""The `journal` command: what commands there are, and the way from the arguments to an exit status.

The commands themselves live in modules of their own, which are imported when they are called. Packages above this one
add more, as entry points of the group `journal.commands`: a word, and the table of the commands that follow it.

Whatever takes long to import is imported in functions here, so that a server takes note of signals from its first
moment on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from command_line.boundary import run_guarded
from journal.stop_signals import note_signals

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from cyclopts import App

# First lines of the functions' docstrings, told without importing them (a test compares the two).
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
        "Print `topic payload` lines of every shard that matches, now or later, until interrupted.",
    ),
    "shard create": ("journal.cli.shard:create_command", "Create a shard."),
    "shard list": ("journal.cli.shard:list_command", "List shards, sorted by name."),
    "shard show": ("journal.cli.shard:show_command", "Show one shard with its segments."),
    "shard mode": (
        "journal.cli.shard_changes:mode_command",
        "Switch where a shard's next segment lies, while it is in use.",
    ),
    "shard set": (
        "journal.cli.shard_changes:set_command",
        "Change what a shard keeps and how large its segments become; what is not named stays as it is.",
    ),
    "shard seal": (
        "journal.cli.seal:seal_command",
        "Close the active segments of shards, and wait until all that is closed lies in Parquet files.",
    ),
    "shard trim": ("journal.cli.shard_changes:trim_command", "Drop a shard's records below an offset, for ever."),
    "shard delete": ("journal.cli.shard_changes:delete_command", "Delete a shard with all its records and cursors."),
    "cursor list": ("journal.cli.cursor:list_command", "List a shard's cursors."),
    "cursor get": ("journal.cli.cursor:get_command", "Print the offset of one cursor."),
    "cursor set": ("journal.cli.cursor:set_command", "Set a cursor durably; make it if it is not there."),
    "config": (
        "journal.cli.config:config",
        "Print the commented configuration file, every setting at its default: `journal config --default`.",
    ),
    "paths": (
        "journal.cli.paths:paths",
        "Print where the shipped files are: `conf` (configuration, units, alert rules, dashboard) and `docs`.",
    ),
    "passwd": (
        "journal.cli.passwd:passwd",
        "Set a user's password in a password file, or remove the user; the password comes from the terminal or stdin.",
    ),
    "token": (
        "journal.cli.token:token",
        "Make a token and add what is kept of it to a file, or remove a user's tokens; the token is printed, once.",
    ),
    "backup": (
        "journal.cli.backup:backup",
        "Copy a data directory into a backup directory, also while its server runs; what is there already stays there.",
    ),
    "restore": (
        "journal.cli.backup:restore",
        "Make a data directory of a backup, every file compared with its digest; `journal serve` takes it from there.",
    ),
    "check": (
        "journal.cli.check:check",
        "Read a whole data or backup directory offline and say where it is damaged; exit status 1 if it is anywhere.",
    ),
    "compact": (
        "journal.cli.compact:compact",
        "Remove what no record of a data directory needs any more, and rewrite its views without what is gone.",
    ),
    "dump": (
        "journal.cli.dump:dump",
        "Print what a log, index, journal or sealed Parquet file holds, an item a line, checking checksums on the way.",
    ),
    "bench": (
        "journal.cli.bench:bench",
        "Measure appends and reads with shards made for it, which are deleted afterwards.",
    ),
}
_PURPOSE: Final = (
    "Durable storage service for a cluster of MQTT brokers: run it, write to it, read from it, look after it."
)
_GROUPS: Final = {
    "shard": "Create, list and look after shards.",
    "cursor": "List, read and set named places in a shard.",
}

ADDED_GROUP: Final = "journal.commands"
"""Entry points with which packages add commands: word -> `command_line.added_commands.AddedCommands`."""

# Of words that the project's own packages add, told without importing those (a test compares the two).
ADDED_HELP: Final = {"queue": "Look at cache queues, and pause, drain and empty them."}


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name).

    Returns:
        The exit status; see `command_line.boundary`.
    """
    word = _first_word(arguments)

    def with_added_commands() -> int:
        from command_line.app import run_app
        from journal.cli.connection import explain

        return run_app(_app_for(word), arguments, explain=explain)

    # Loading what others add may fail as well, and is told in the same way.
    return run_guarded(with_added_commands, program="journal", debug="--debug" in arguments)


def _app_for(word: str) -> App:
    """The program, with those added commands that a command line with this first word may mean."""
    from importlib.metadata import entry_points

    from command_line.added_commands import load_commands, named
    from command_line.app import build_app

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
    if _first_word(sys.argv[1:]) == "serve":
        note_signals()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
