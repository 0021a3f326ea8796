"""Positions and versions: numbers of one log that must not be compared with each other by chance. Pure.

Every record and every state key gets an lsn of its own, also those of one commit, and a record in memory mode is shown
to readers ahead of file-mode records with lower lsns that wait for the disk. So neither the lsn of a record nor the
version of a key says what has been shown altogether. A position does: the store tells it, and it never lies inside a
commit.
"""

from __future__ import annotations

from typing import NewType

import attrs

ReachedLsn = NewType("ReachedLsn", int)
"""Everything up to this lsn is done, in all shards that matter here: put in, handed out, read or taken.

The lsn of a record, which is a plain number, is none. Make one of a `Position`, of another one, or where it is known
that everything below a record is done. It may lie inside a commit, which a `Position` never does.
"""


@attrs.frozen(slots=True)
class StateVersion:
    """Version of a key of the state store: the lsn of the entry that wrote it.

    Two versions can be compared for equality alone. Whether a write lies before a position tells `Position.covers`.
    """

    number: int


@attrs.frozen(slots=True, order=True)
class Position:
    """What the store told of how far it is: everything with this lsn or a lower one is committed and shown to readers.

    It lies between two commits: of the changes of one commit, it covers all or none. Make one of what the store told as
    such (`Feed.start_lsn`, `Progress.lsn`), never of the lsn of a record.
    """

    lsn: ReachedLsn = attrs.field(converter=ReachedLsn)

    def covers(self, version: StateVersion) -> bool:
        """Whether the commit that wrote this version is among what the position stands for."""
        return version.number <= self.lsn

    def covers_record(self, record_lsn: int) -> bool:
        """Whether the commit that appended the record with this lsn is among what the position stands for."""
        return record_lsn <= self.lsn


BEGINNING = Position(0)
"""Nothing lies before it."""
