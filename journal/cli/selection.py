"""Selects the records to show from those that a read fetches: an end, a count, a first time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from shards.format.record import Gap, StoredRecord


@attrs.define(slots=True)
class Selection:
    """Selects records from consecutive fetches.

    Attributes:
        end_offset: No records from this offset on; None for no end.
        count: Number of records still to show, without gaps; None for no limit.
        from_us: Skip records up to the first whose timestamp is not before this time; 0 skips none. A read by time
            finds the batch, whose first records may be older.
        finished: No later record can be selected.
    """

    end_offset: int | None = None
    count: int | None = None
    from_us: int = 0
    finished: bool = False

    def __attrs_post_init__(self) -> None:
        self.finished = self.count is not None and self.count <= 0

    def take(self, records: Sequence[StoredRecord | Gap]) -> list[StoredRecord | Gap]:
        """The records to show from fetched ones, in the order of offsets."""
        chosen: list[StoredRecord | Gap] = []
        for record in records:
            if self.finished:
                break
            is_gap = isinstance(record, Gap)
            offset = record.first_offset if isinstance(record, Gap) else record.offset
            if self.end_offset is not None and offset >= self.end_offset:
                self.finished = True
                break
            if not isinstance(record, Gap) and self.from_us:
                if record.timestamp_us < self.from_us:
                    continue
                self.from_us = 0
            chosen.append(record)
            if self.count is not None and not is_gap:
                self.count -= 1
                self.finished = self.count == 0
        return chosen
