"""Error handling of commands: every failure becomes one line on stderr and an exit status, never a traceback.

Exit statuses: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 ended by SIGTERM, 141 the reader of stdout has
closed it. A server has two more, for its supervisor: 74 its storage failed and it is to be started again, 78 its
settings are wrong and starting it again will not help (EX_IOERR and EX_CONFIG of sysexits.h).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from shards.errors import StorageError, StorageFailedError
from shards.extras import install_command

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141
STORAGE_FAILED: Final = 74
WRONG_SETTINGS: Final = 78

FIRST_WITHIN_S: Final = 0.3
"""How long a command tries to reach a server that does not answer at once."""

# The extra of the installation that a program needs. Its own modules are never missing.
_EXTRAS: Final = {"journal": "server", "journal-broker": "broker", "journal-spark": "spark"}
_OWN_PACKAGES: Final = ("shards", "command_line", "journal", "broker_adapter", "spark_export")

Explain: TypeAlias = Callable[[BaseException], str | None]
"""Explains an error of the program's own kinds in one line; returns None for any other error."""


class UsageError(Exception):
    """The command line is wrong; the message says what is possible."""


class CommandError(Exception):
    """A command cannot continue, for a reason outside the store; the message says why and what can be done.

    Attributes:
        status: The exit status.
    """

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


class StoppedError(Exception):
    """A signal stopped a command that runs until then.

    Attributes:
        status: The exit status that shells use for such an end.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.status = 128 + number


class OutputClosedError(Exception):
    """The reader of our standard output has closed it, as in `journal read ... | head`."""


class OutputFailedError(CommandError):
    """Standard output takes nothing more, because its disk is full for example."""


def run_guarded(
    command: Callable[[], int], *, program: str, explain: Explain = lambda _: None, debug: bool = False
) -> int:
    """Run a command and convert any error to one line on stderr.

    Args:
        command: Returns the exit status if there was no error.
        program: Name at the beginning of the line.
        explain: Called first with an error.
        debug: Print the traceback as well.

    Returns:
        The exit status.
    """
    try:
        status = command()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else FAILED if error.code else 0
    except BaseException as error:  # noqa: BLE001 - every error is handled here
        if debug:
            traceback.print_exc()
        return _report(error, program, explain)
    return status


def describe(error: BaseException, explain: Explain = lambda _: None) -> str:
    """One line that describes the error and, if possible, what can be done."""
    if told := explain(error):
        return told
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    if isinstance(error, StorageError | UsageError | CommandError | OSError):
        return one_line(error)
    return f"internal error: {type(error).__name__}: {one_line(error)}; run again with --debug to see where"


def one_line(error: BaseException) -> str:
    """The message of an error in one line; its lines are separated by semicolons."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return "; ".join(line.rstrip(";") for line in lines if line) or type(error).__name__


def outcome_of(error: BaseException, program: str, explain: Explain = lambda _: None) -> tuple[str, int]:
    """The line about an error, without the program's name, and the exit status; see `run_guarded`."""
    leaves = list(_leaves(error))
    # Of errors that happened together, the one that was raised on purpose explains most.
    leaf = min(
        leaves, key=lambda each: not (isinstance(each, StorageError | UsageError | CommandError) or explain(each))
    )
    line = _missing_package(leaf, program) or describe(leaf, explain)
    if isinstance(leaf, CommandError):
        return line, leaf.status
    return line, USAGE if isinstance(leaf, UsageError) else FAILED


def _report(error: BaseException, program: str, explain: Explain) -> int:
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return INTERRUPTED
    for leaf in leaves:
        if isinstance(leaf, StoppedError):
            return leaf.status
    if any(isinstance(leaf, OutputClosedError | OutputFailedError) for leaf in leaves):
        # Python would try to flush the rest at exit, and report an error with an exit status of its own: discard it.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
    if any(isinstance(leaf, OutputClosedError) for leaf in leaves):
        return OUTPUT_CLOSED
    line, status = outcome_of(error, program, explain)
    sys.stderr.write(f"{program}: {line}\n")
    return status


def _missing_package(error: BaseException, program: str) -> str | None:
    """The message about a missing package that a program needs; None for any other error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not package or package in _OWN_PACKAGES or program not in _EXTRAS:
        return None
    return (
        f"the Python package {package!r} is not installed; `{install_command(_EXTRAS[program])}` installs the packages "
        f"that `{program}` needs"
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


@contextmanager
def exit_status_for_supervisor(wrong_settings: type[Exception]) -> Iterator[None]:
    """Convert errors of a server to errors with their exit statuses.

    Args:
        wrong_settings: The error for settings that cannot be used.

    Raises:
        CommandError: The storage failed, or the settings are wrong; it has the exit status.
    """
    try:
        yield
    except Exception as error:
        for kind, status in ((StorageFailedError, STORAGE_FAILED), (wrong_settings, WRONG_SETTINGS)):
            found = next((leaf for leaf in _leaves(error) if isinstance(leaf, kind)), None)
            if found is not None:
                raise CommandError(one_line(found), status) from error
        raise


def unreached(server: str, error: BaseException, option: str = "--server HOST:PORT") -> CommandError:
    """The error of a command for the error of a client that was never connected.

    Args:
        server: The given address.
        error: Its cause is the error of the last attempt, and the cause of that may be an error of the system.
        option: The option that names another server.
    """
    import socket
    import ssl  # imported late: they take a part of the time of a short command

    last = error.__cause__ or error
    if isinstance(last.__cause__, socket.gaierror):
        return CommandError(
            f"the host in the address {server} is not known: {last.__cause__.strerror}; name the server with {option}"
        )
    if isinstance(last.__cause__, OSError) and not isinstance(last.__cause__, ssl.SSLError):
        return CommandError(
            f"no server answers at {server}; start one with `journal serve --data DIR`, or name it with {option}"
        )
    said = one_line(last)
    if last.__cause__ is not None or server in said:
        return CommandError(said)
    return CommandError(
        f"the server at {server} does not answer: {said}. Its process is suspended or overloaded, or packets to it "
        f"are dropped on the way: check the server and its log, or name another with {option}"
    )
