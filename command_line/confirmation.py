"""Confirmation before an operation that cannot be undone."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import Parameter

from command_line.boundary import CommandError
from command_line.output import confirmed

YesOption: TypeAlias = Annotated[bool, Parameter(negative="", help="Do not ask first.")]


async def require_yes(question: str, yes: bool) -> None:
    """Continue only if the operator confirms it.

    Raises:
        CommandError: The answer was no.
        UsageError: There is no terminal to ask on.
    """
    import trio

    if yes or await trio.to_thread.run_sync(confirmed, question, abandon_on_cancel=True):
        return
    raise CommandError("nothing was done")
