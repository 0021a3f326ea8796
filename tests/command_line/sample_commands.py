"""Commands of a program that exists in the tests alone."""

from __future__ import annotations

from command_line.boundary import CommandError


def one(*, status: int = 0) -> int:
    """Do one thing."""
    return status


def named(name: str, /, *, mode: str, size: int = 0) -> None:
    """Take a word and an option, which must be there."""


def fail() -> None:
    """Fail."""
    raise CommandError("it failed")
