"""What a store changes in one step: records, and keys of the state store; all of it or nothing."""

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
        expected_version: Only if it has this version now; 0: only if it is not there; None: whatever it is.
        expires_at_us: Time from which it is gone; 0 means never.
    """

    key: bytes
    value: bytes
    expected_version: int | None = None
    expires_at_us: int = 0


@attrs.frozen(slots=True)
class StateDelete:
    """Delete a key, under the same condition."""

    key: bytes
    expected_version: int | None = None


@attrs.frozen(slots=True)
class CursorCheck:
    """Make the changes only if a cursor lies at ``max_offset`` or before it, or is not there."""

    shard: str
    name: str
    max_offset: int


@attrs.frozen(slots=True)
class Changes:
    """Appends (shard name, records; one batch each) and state changes; a key may occur once.

    All of ``cursors`` must hold at the moment at which they are made.
    """

    appends: tuple[tuple[str, Sequence[Record]], ...] = ()
    puts: tuple[StatePut, ...] = ()
    deletes: tuple[StateDelete, ...] = ()
    cursors: tuple[CursorCheck, ...] = ()


@attrs.frozen(slots=True)
class Committed:
    """What became of them, in the order in which they were given."""

    appended: tuple[Appended, ...] = ()
    values: tuple[StateValue, ...] = ()


def check_changes(changes: Changes) -> None:
    """Refuse what says nothing, or two things about one key.

    Raises:
        InvalidRequestError: See above.
    """
    if not (changes.appends or changes.puts or changes.deletes):
        raise InvalidRequestError("there is nothing to commit: name at least one append, put or delete")
    seen: set[bytes] = set()
    changed: list[StatePut | StateDelete] = [*changes.puts, *changes.deletes]
    for one in changed:
        if one.key in seen:
            raise InvalidRequestError(f"state key {one.key!r} is changed twice in one commit; name it once")
        seen.add(one.key)
