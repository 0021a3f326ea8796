"""The history of a store as its gaps in the lsns, and up to which lsn two histories are the same. Pure values.

A restore from a backup ends one history and begins another: data after the backup is lost, and lsns continue far above
it (docs/adr/0023). So a history is identified by its gaps, and two histories are the same up to the first gap that only
one of them has.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs


@attrs.frozen(slots=True)
class HistoryGap:
    """One restore from a backup.

    Attributes:
        lsn_before: The newest lsn in the backup.
        lsn_after: The first lsn that was assigned after the restore; different for every restore.
    """

    lsn_before: int
    lsn_after: int


def common_lsn(known: Collection[HistoryGap], found: Collection[HistoryGap]) -> int | None:
    """The lsn up to which two histories are the same; None if they do not differ.

    Args:
        known: The gaps of the history that was read before.
        found: The gaps of the history that the store has now.
    """
    if known == found:
        return None
    return min((gap.lsn_before for gap in {*known} ^ {*found}), default=None)
