"""Which of the records that a read fetches are shown: up to an end, a count, from a time on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from shards.format.record import Gap, StoredRecord


@attrs.define(slots=True)
class Selection:
    """Takes what is asked for out of consecutive fetches.

    Attributes:
        end_offset: Nothing from this offset on; None for no end.
        count: Records still to show, gaps not counted; None for no limit.
        from_us: Skip records up to the first whose timestamp is not before this time; 0 skips none. A read by time
            finds the batch, and the first records of that batch may be older.
        finished: Nothing that follows can be asked for.
    """

    end_offset: int | None = None
    count: int | None = None
    from_us: int = 0
    finished: bool = False

    def __attrs_post_init__(self) -> None:
        self.finished = self.count is not None and self.count <= 0

    def take(self, records: Sequence[StoredRecord | Gap]) -> list[StoredRecord | Gap]:
        """Those of the fetched records, in offset order, that are to be shown."""
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
