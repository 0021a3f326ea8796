"""The one rule of compare-and-set, for cursors and state alike.

What counts as the found version, the caller decides: the engine looks at the views and at what is still pending, and
takes an expired value for one that is not there.
"""

from __future__ import annotations

from shards.errors import CursorConflictError, InvalidRequestError, VersionConflictError

NOT_THERE = 0
"""The version of something that does not exist. Versions of existing things are lsns, which begin at 1."""


def check(what: str, expected_version: int | None, found_version: int) -> None:
    """Refuse a change whose author saw another version than there is.

    Args:
        what: Names the thing in the error, such as ``cursor 'billing' of shard 'orders'``.
        expected_version: None takes any version; 0 (`NOT_THERE`) demands that it does not exist.
        found_version: Version there is; 0 if it does not exist.

    Raises:
        VersionConflictError: The versions differ.
        InvalidRequestError: The expected version is negative.
    """
    if expected_version is None:
        return
    if expected_version < 0:
        raise InvalidRequestError(
            f"expected version of {what} is {expected_version}; it must be a version that was read, "
            f"{NOT_THERE} for 'does not exist', or left out"
        )
    if expected_version != found_version:
        raise VersionConflictError(what, expected_version, found_version)


def check_cursor(shard: str, name: str, max_offset: int, found_offset: int | None) -> None:
    """Refuse a change whose author takes a cursor for being at an offset or before it, when it is not.

    Args:
        found_offset: None if there is no such cursor, which stands against nothing.

    Raises:
        CursorConflictError: It lies beyond.
    """
    if found_offset is not None and found_offset > max_offset:
        raise CursorConflictError(shard, name, max_offset, found_offset)
