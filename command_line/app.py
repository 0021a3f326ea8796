"""A program with several commands: from a table of them and the arguments to an exit status.

The commands are in modules of their own, which are imported when they are called. Other installed packages can add
commands by entry points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint
from typing import Annotated, TypeAlias

import attrs
from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import MissingArgumentError, UnknownCommandError, UnusedCliTokensError

from command_line.boundary import CommandError, Explain, UsageError, run_guarded
from shards.extras import install_command

JsonOption: TypeAlias = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for scripts.")]
YesOption: TypeAlias = Annotated[bool, Parameter(negative="", help="Do not ask first.")]


def build_app(
    program: str, purpose: str, commands: Mapping[str, tuple[str, str]], groups: Mapping[str, str] | None = None
) -> App:
    """Create a program with all its commands; none of them is imported yet.

    Args:
        program: Name of the program.
        purpose: Its purpose, in one line.
        commands: By their words (`shard list`): the path of the function (`package.module:function`), and the first
            line of its docstring, which is shown without importing it.
            A word that is a command itself may be the first word of others, too.
        groups: Help of the first words of other commands that have two.
    """
    app = App(
        name=program,
        help=purpose,
        # Markdown would take a quarter of the time of `--help`.
        help_format="plaintext",
        help_epilogue="--debug with any command prints the traceback of an error.",
        version=_version,
    )
    parents = {name: App(name=name, help=help_line) for name, help_line in (groups or {}).items()}
    for parent in parents.values():
        app.command(parent)
    for words, (path, help_line) in commands.items():
        first, _, second = words.partition(" ")
        if second and first not in commands:
            parents[first].command(path, name=second, help=help_line)
        else:
            app.command(path, name=words, help=help_line)
    return app


def run_app(
    app: App,
    arguments: Sequence[str],
    *,
    explain: Explain = lambda _: None,
    renames: Mapping[str, str] = {},
) -> int:
    """Run one command line (without the program's name).

    Args:
        app: The program.
        arguments: The command line.
        explain: See `run_guarded`.
        renames: New words of commands, by the old ones.

    Returns:
        The exit status; see `command_line.boundary`.
    """
    debug = "--debug" in arguments
    tokens = [argument for argument in arguments if argument != "--debug"]
    if (words := " ".join(tokens[:2])) in app:
        # Its first word is a command itself, so that the second one would be taken for an argument of that.
        tokens[:2] = [words]
    program = app.name[0]

    def command() -> int:
        try:
            result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        except UnknownCommandError as error:
            raise UsageError(_unknown_command(program, error, renames)) from error
        except CycloptsError as error:
            raise UsageError(_wrong_usage(program, error)) from error
        return result if isinstance(result, int) else 0

    return run_guarded(command, program=program, explain=explain, debug=debug)


def _wrong_usage(program: str, error: CycloptsError) -> str:
    """What is wrong with the words behind a command, and whose help has the right ones."""
    called = " ".join([program, *(error.command_chain or ())])
    told = str(error).rstrip(".")
    if isinstance(error, UnusedCliTokensError):
        told = f"`{called}` does not take {', '.join(map(repr, error.unused_tokens or ()))}"
    elif type(error) is MissingArgumentError and error.argument is not None:
        # A word that has a place and a name is mostly given by its place, and called like that in `--help`.
        options = [name for name in error.argument.names if name.startswith("-")]
        is_option = error.argument.index is None or error.keyword is not None
        wanted = f"a value for {error.keyword or options[0]}" if is_option else _placeholder(error.argument.name)
        told = f"`{called}` needs {wanted}"
        unused = [word for word in error.unused_tokens or () if word.startswith("-")]
        if unknown := [word for word in unused if word not in error.argument.names]:
            told += f", and does not know {', '.join(unknown)}"
    return f"{told}{' See' if told.endswith('?') else '; see'} `{called} --help`"


def _placeholder(name: str) -> str:
    return name.lstrip("-").upper()


def _unknown_command(program: str, error: UnknownCommandError, renames: Mapping[str, str]) -> str:
    """The message with all commands; that of cyclopts has only eight."""
    assert error.app is not None
    assert error.unused_tokens
    word = error.unused_tokens[0]
    known = [name for name in error.app if not name.startswith("-")]
    called = " ".join([program, *(error.command_chain or ())])
    words = " ".join([*(error.command_chain or ()), word])
    if words in renames:
        return (
            f"`{program} {words}` has a new name: `{program} {renames[words]}`; see `{program} {renames[words]} --help`"
        )
    close = get_close_matches(word, known, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"`{called}` has no command {word!r}.{meant} It has {', '.join(known)}; see `{called} --help`"


def _version() -> str:
    from importlib.metadata import version

    return version("journal-engine")


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
