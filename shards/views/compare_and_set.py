"""The rule of compare-and-set, for cursors and state.

The caller determines the found version: the engine reads the views and pending changes, and treats an expired value as
one that does not exist.
"""

from __future__ import annotations

from shards.errors import CursorConflictError, InvalidRequestError, VersionConflictError

NOT_THERE = 0
"""Version of an object that does not exist. Versions of existing ones are lsns, which begin at 1."""


def check(what: str, expected_version: int | None, found_version: int) -> None:
    """Refuse a change that was based on another version than the present one.

    Args:
        what: The object, for the error message, such as ``cursor 'billing' of shard 'orders'``.
        expected_version: None accepts any version; 0 (`NOT_THERE`) requires that it does not exist.
        found_version: Present version; 0 if it does not exist.

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
    """Refuse a change that requires a cursor to be at an offset or before it, if it is after it.

    Args:
        found_offset: None if the cursor does not exist, which is accepted.

    Raises:
        CursorConflictError: The cursor is after ``max_offset``.
    """
    if found_offset is not None and found_offset > max_offset:
        raise CursorConflictError(shard, name, max_offset, found_offset)
