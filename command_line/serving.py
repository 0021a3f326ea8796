"""Exit statuses of servers, which tell the supervisor whether to start them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from command_line.boundary import STORAGE_FAILED, WRONG_SETTINGS, CommandError, one_line
from shards.errors import StorageFailedError


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
            found = _first(error, kind)
            if found is not None:
                raise CommandError(one_line(found), status) from error
        raise


def _first(error: BaseException, kind: type[Exception]) -> Exception | None:
    """The first error of a type, alone or in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := _first(each, kind)) is not None), None)
    return error if isinstance(error, kind) else None
