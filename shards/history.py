"""Which lsns belong to the history of a store, and up to where two histories are the same. Pure values.

A restore from a backup ends one history and begins another: what was given out behind the backup is gone, and lsns go
on far above it (docs/adr/0023). So a history is known by its gaps, and two of them are the same up to the first gap
that only one of them has.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs


@attrs.frozen(slots=True)
class HistoryGap:
    """One restore from a backup.

    Attributes:
        lsn_before: The newest lsn that the backup holds.
        lsn_after: The first lsn that was given out after the restore; no other restore has the same one.
    """

    lsn_before: int
    lsn_after: int


def common_lsn(known: Collection[HistoryGap], found: Collection[HistoryGap]) -> int | None:
    """The lsn up to which two histories are the same; None if they do not differ.

    Args:
        known: The gaps of the history that somebody read.
        found: The gaps of the history that the store has now.
    """
    if known == found:
        return None
    return min((gap.lsn_before for gap in {*known} ^ {*found}), default=None)
