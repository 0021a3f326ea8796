"""`journal passwd`, also as `journal-broker passwd`. No password is taken from the command line, which is visible."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from command_line.boundary import CommandError, UsageError
from command_line.output import write_text


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
