"""Positions and versions: kinds of lsns that must not be mixed up. Pure.

Every record and every state key gets an lsn of its own, also within one commit, and a record in memory mode is shown to
readers ahead of file-mode records with lower lsns that are not on disk yet. So neither the lsn of a record nor the
version of a key says how far all shards have been shown. A position does: it comes from the store, and it is never
between two lsns of one commit.
"""

from __future__ import annotations

from typing import NewType

import attrs

ReachedLsn = NewType("ReachedLsn", int)
"""Everything up to this lsn is finished, in all shards that matter here: stored, delivered, read or taken.

The lsn of a record, which is a plain number, is not such an lsn. Make one from a `Position`, from another one, or where
everything below a record is known to be finished. It may be between two lsns of one commit, unlike a `Position`.
"""


@attrs.frozen(slots=True)
class StateVersion:
    """Version of a key of the state store: the lsn of the entry that wrote it.

    Two versions can only be compared for equality. `Position.covers` compares a version with a position.
    """

    number: int


@attrs.frozen(slots=True, order=True)
class Position:
    """A position of the store: everything with this lsn or a lower one is committed and shown to readers.

    It is between two commits: it covers all changes of a commit, or none. Make one only of an lsn that the store
    returned as a position (`Feed.start_lsn`, `Progress.lsn`), never of the lsn of a record.
    """

    lsn: ReachedLsn = attrs.field(converter=ReachedLsn)

    def covers(self, version: StateVersion) -> bool:
        """Whether the commit that wrote this version is at or before the position."""
        return version.number <= self.lsn

    def covers_record(self, record_lsn: int) -> bool:
        """Whether the commit that appended the record with this lsn is at or before the position."""
        return record_lsn <= self.lsn


BEGINNING = Position(0)
"""Before every record."""


@attrs.define(slots=True, eq=False)
class RetainedScan:
    """Position in the retained messages that a new subscription has still to send to its client.

    It is a position in the keys of retained messages, not a list of messages: its size is the same for one topic and
    for a million. It is stored with the session's progress, and continues there when the client reconnects.

    Attributes:
        topic_filter: Of the subscription.
        until: Messages retained up to this position are sent; later ones come as live messages.
        qos: Highest QoS with which they are sent.
        subscription_id: Subscription Identifier sent with each message; 0 means none.
        after: Key of the last retained message that was taken; empty before the first.
    """

    topic_filter: str
    until: Position
    qos: int
    subscription_id: int = 0
    after: bytes = b""
