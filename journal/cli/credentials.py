"""`journal passwd` and `journal token`: the files of users and of bearer tokens."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from command_line.boundary import CommandError, UsageError
from command_line.output import write_text
from command_line.quantities import parse_duration_s


def passwd(file: str, user: str, /, *, remove: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Set a user's password in a password file, or remove the user; the password comes from the terminal or stdin.

    A running server or broker reads the file again at SIGHUP.

    Args:
        file: Password file (access.users_file); created if it does not exist, readable only for its owner.
        user: User name.
        remove: Remove the user.
    """
    from journal.access.users import PasswordHash, check_name, write_user

    try:
        check_name(user)
    except ValueError as error:
        raise UsageError(f"the command line {error}") from error
    if remove:
        if not write_user(file, user, None):
            raise CommandError(f"{file} has no user {user!r}")
        write_text(f"{user}: removed")
        return
    was_there = write_user(file, user, PasswordHash.of(_password(user)))
    write_text(f"{user}: {'password changed' if was_there else 'added'}")


def _password(user: str) -> bytes:
    """Read it from the terminal, twice and without echo, or from the first line of stdin."""
    if not sys.stdin.isatty():
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
        if not password:
            raise UsageError("no password on stdin; give it as a line, or run this in a terminal to be asked")
        return password
    from getpass import getpass

    first = getpass(f"password of {user}: ")
    if not first:
        raise CommandError("the password is empty; nothing was changed")
    if getpass("once more: ") != first:
        raise CommandError("the two differ; nothing was changed")
    return first.encode()


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
