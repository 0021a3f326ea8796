"""What commands say when they do not reach a server: none answers, or something else does."""

from __future__ import annotations

import ssl

from command_line.boundary import CommandError, one_line

FIRST_WITHIN_S = 0.3
"""So long a command tries to reach a server that does not answer at once."""


def unreached(server: str, error: BaseException, option: str = "--server HOST:PORT") -> CommandError:
    """The error of a command for an error of a client that never had a connection.

    Args:
        server: As the command was told.
        error: It comes from what the last attempt ended with, and that from what the system said, if it did.
        option: How a command is told another server.
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
        f"the server at {server} does not answer: {said}. Its process is suspended or overloaded, or what is sent to "
        f"it is dropped on the way: look at the server and its log, or name another with {option}"
    )
