"""The `journal-broker` command: its subcommands, and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from command_line.boundary import one_line, run_guarded
from command_line.interpreter import prepare_interpreter
from journal.stop_signals import STOPS, note_signals

PROGRAM: Final = "journal-broker"

# First lines of the functions' docstrings, here so that listing them imports no command (a test compares the two).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "serve": (
        "broker_adapter.mqtt.cli.serve:serve",
        "Run the broker (also without a command); print `ready` with its addresses once it accepts clients.",
    ),
    "bridge": (
        "broker_adapter.mqtt.cli.serve:bridge",
        "Drive bridges, all or those named, in a process of their own; print `ready` with their names.",
    ),
    "passwd": (
        "journal.cli.credentials:passwd",
        "Set a user's password in a password file, or remove the user; the password comes from the terminal or stdin.",
    ),
    "rules": (
        "broker_adapter.mqtt.cli.rules:rules",
        "Show the rules of all brokers of a store; or how they treat messages to a topic.",
    ),
    "apply": (
        "broker_adapter.mqtt.cli.apply:apply",
        "Make the bridges, storage rules and mapping rules of a file those of all brokers of its store.",
    ),
    "clients list": (
        "broker_adapter.mqtt.cli.clients:list_command",
        "List the clients that have a session in a store, connected or not.",
    ),
    "clients kick": (
        "broker_adapter.mqtt.cli.clients:kick_command",
        "Disconnect a client, at whichever broker it is; it may connect again at once (`ban` prevents that).",
    ),
    "ban add": (
        "broker_adapter.mqtt.cli.ban:add_command",
        "Ban a user, a client identifier or a network at all brokers of a store, in place of an earlier ban of it.",
    ),
    "ban list": (
        "broker_adapter.mqtt.cli.ban:list_command",
        "List the bans of a store, except for those that have ended.",
    ),
    "ban remove": ("broker_adapter.mqtt.cli.ban:remove_command", "Remove a ban at all brokers of a store."),
    "check": (
        "broker_adapter.mqtt.cli.config:check",
        "Read a configuration and all files that it names, and say what is wrong with them.",
    ),
    "config": (
        "broker_adapter.mqtt.cli.config:config",
        "Print the commented configuration file, every setting at its default: `journal-broker config --default`.",
    ),
    "bench trace": (
        "broker_adapter.mqtt.cli.bench_trace:bench_trace",
        "Measure the hops of a message from publisher to subscriber, at parts of the highest rate.",
    ),
    "paths": (
        "journal.cli.serve:paths",
        "Print the paths of the shipped files: `conf` (configuration, units, alert rules, dashboard) and `docs`.",
    ),
}
_PURPOSE: Final = "MQTT broker that keeps everything in a store, which any number of brokers share."
_GROUPS: Final = {
    "clients": "List and disconnect the clients of all brokers of a store.",
    "bench": "Measure running brokers.",
    "ban": "Add, list and remove bans of users, client identifiers and networks.",
}
_OWN_OPTIONS: Final = ("--help", "-h", "--version")


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name).

    Returns:
        The exit status; see `command_line.boundary`.
    """
    if _command_of(arguments) == "":
        arguments = ["serve", *arguments]

    def command() -> int:
        # The command-line library may be missing. Imported here, its absence is reported like any other error.
        from command_line.app import build_app, run_app

        return run_app(build_app(PROGRAM, _PURPOSE, COMMANDS, _GROUPS), arguments, explain=explain)

    return run_guarded(command, program=PROGRAM, debug="--debug" in arguments)


def _command_of(arguments: Sequence[str]) -> str:
    """The first word, or option of the program itself; empty if the broker is to be run without a command."""
    first = next((argument for argument in arguments if argument != "--debug"), "")
    return "" if first.startswith("-") and first not in _OWN_OPTIONS else first


def explain(error: BaseException) -> str | None:
    """The message of an error of the broker itself, in one line; None for other errors."""
    from broker_adapter.mqtt.session.errors import SessionError

    return one_line(error) if isinstance(error, SessionError) else None


def main() -> None:
    """Entry point of the installed command."""
    prepare_interpreter()
    # Before the modules of a broker are imported, which takes a while.
    if (command := _command_of(sys.argv[1:])) in ("", "serve"):
        note_signals()
    elif command == "bridge":
        note_signals(STOPS)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
