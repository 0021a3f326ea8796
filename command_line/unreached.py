"""Error messages of commands that cannot connect to a server: none answers, or another program does."""

from __future__ import annotations

import ssl

from command_line.boundary import CommandError, one_line

FIRST_WITHIN_S = 0.3
"""How long a command tries to reach a server that does not answer at once."""


def unreached(server: str, error: BaseException, option: str = "--server HOST:PORT") -> CommandError:
    """The error of a command for the error of a client that was never connected.

    Args:
        server: The given address.
        error: Its cause is the error of the last attempt, and the cause of that may be an error of the system.
        option: The option that names another server.
    """
    last = error.__cause__ or error
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
