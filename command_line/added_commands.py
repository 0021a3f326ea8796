"""Commands that other installed packages add to a program: their entry points, imported when they are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint

import attrs

from command_line.boundary import CommandError
from shards.extras import install_command


@attrs.frozen
class AddedCommands:
    """The commands that begin with one word, which is the name of their entry point.

    Attributes:
        help_line: Their purpose, in one line.
        commands: By their second word: the path of the function, and the first line of its docstring; see
            `command_line.app.build_app`.
    """

    help_line: str
    commands: Mapping[str, tuple[str, str]]


def load_commands(program: str, entry_point: EntryPoint) -> AddedCommands:
    """Import the table that an entry point names.

    Raises:
        CommandError: A package that it needs is not installed, or it is not such a table.
    """
    try:
        loaded = entry_point.load()
    except ImportError as error:
        raise CommandError(
            f"`{program} {entry_point.name}` needs the Python package {error.name!r}, which is not installed: "
            f"{install_command('broker')}"
        ) from error
    except AttributeError as error:
        raise _no_table(program, entry_point) from error
    if not isinstance(loaded, AddedCommands):
        raise _no_table(program, entry_point)
    return loaded


def named(word: str, entry_points: Iterable[EntryPoint]) -> EntryPoint | None:
    """The entry point with this name, if there is one."""
    return next((each for each in entry_points if each.name == word), None)


def _no_table(program: str, entry_point: EntryPoint) -> CommandError:
    return CommandError(
        f"`{program} {entry_point.name}`: {entry_point.value} is not a table of commands; install a version of its "
        "package that matches this one"
    )
