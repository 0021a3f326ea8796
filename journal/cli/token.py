"""`journal token`: create a bearer token, which is printed once and stored nowhere, or remove those of a user."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from command_line.boundary import CommandError, UsageError
from command_line.output import write_text
from command_line.quantities import parse_duration_s


def token(
    file: str,
    user: str,
    /,
    *,
    expires_in: str = "0s",
    remove: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Create a token and add its hash to a file, or remove a user's tokens; the token is printed only once.

    A running server reads the file again at SIGHUP. Redirect the output into the file that the client reads:
    `journal token /etc/journal/tokens robot > robot.token`.

    Args:
        file: File of tokens (access.tokens_file); created if it does not exist, readable only for its owner.
        user: The user that the token is for.
        expires_in: How long it is valid, such as 90d; 0s for no limit.
        remove: Remove all tokens of the user.
    """
    import time

    from journal.access.tokens import add_token, remove_tokens
    from journal.access.users import check_name

    try:
        check_name(user)
    except ValueError as error:
        raise UsageError(f"the command line {error}") from error
    if remove:
        count = remove_tokens(file, user)
        if not count:
            raise CommandError(f"{file} has no token of {user!r}")
        write_text(f"{user}: {count} removed")
        return
    left_s = parse_duration_s(expires_in)
    write_text(add_token(file, user, time.time() + left_s if left_s else None))
