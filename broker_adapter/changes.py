"""A transaction of a store: appended records and changed keys of the state store, all of it or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from shards.errors import InvalidRequestError
from shards.format.record import Record
from shards.model import Appended, StateValue


@attrs.frozen(slots=True)
class StatePut:
    """Set a key.

    Attributes:
        expected_version: Only if it has this version now; 0: only if it does not exist; None: unconditionally.
        expires_at_us: Time at which it expires, in microseconds since the epoch; 0 means never.
    """

    key: bytes
    value: bytes
    expected_version: int | None = None
    expires_at_us: int = 0


@attrs.frozen(slots=True)
class StateDelete:
    """Delete a key. ``expected_version`` is as for `StatePut`."""

    key: bytes
    expected_version: int | None = None


@attrs.frozen(slots=True)
class CursorCheck:
    """Make the changes only if a cursor is at ``max_offset`` or below, or does not exist."""

    shard: str
    name: str
    max_offset: int


@attrs.frozen(slots=True)
class Changes:
    """Appends (shard name, records; one batch each) and state changes; a key may occur once.

    All checks in ``cursors`` must hold when the changes are made.
    """

    appends: tuple[tuple[str, Sequence[Record]], ...] = ()
    puts: tuple[StatePut, ...] = ()
    deletes: tuple[StateDelete, ...] = ()
    cursors: tuple[CursorCheck, ...] = ()


@attrs.frozen(slots=True)
class Committed:
    """The results of the appends and of the puts, each in the order in which they were given."""

    appended: tuple[Appended, ...] = ()
    values: tuple[StateValue, ...] = ()


def check_changes(changes: Changes) -> None:
    """Refuse a transaction that is empty or that changes one key twice.

    Raises:
        InvalidRequestError: It is.
    """
    if not (changes.appends or changes.puts or changes.deletes):
        raise InvalidRequestError("there is nothing to commit: name at least one append, put or delete")
    seen: set[bytes] = set()
    changed: list[StatePut | StateDelete] = [*changes.puts, *changes.deletes]
    for one in changed:
        if one.key in seen:
            raise InvalidRequestError(f"state key {one.key!r} is changed twice in one commit; name it once")
        seen.add(one.key)
