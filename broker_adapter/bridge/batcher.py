"""Makes batches of rows from a queue's records: read ahead, project, and cut by count, bytes and time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final

import attrs
import trio

from broker_adapter.bridge.projection import ProjectionError
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.cache_queue import QueueDrain
from broker_adapter.cache_queue.drain import Hole
from broker_adapter.cache_queue.progress import added
from broker_adapter.cache_queue.stored import Counts
from broker_adapter.sinks import Batch, Row
from shards.format.record import StoredRecord

_READ_BYTES: Final = 1 << 20
_LONGEST_WAIT_S: Final = 1.0
_RECORD_BYTES: Final = 100

NOTHING: Final = Counts()


@attrs.frozen(slots=True)
class Letter:
    """A record that becomes a dead letter, because it has no row or the sink refuses it; and why."""

    record: StoredRecord
    reason: str


@attrs.frozen(slots=True)
class Prepared:
    """A batch that is ready to be written.

    Attributes:
        records: The records that became rows.
        batch: Their rows. It may have none, and then there is only an offset to confirm.
        letters: Records in its range that cannot be projected.
        skipped: Counts of the offsets in its range that have no record.
    """

    records: Sequence[StoredRecord]
    batch: Batch
    letters: Sequence[Letter]
    skipped: Counts


class Batcher:
    """Reads one queue from an offset on.

    Args:
        drain: The queue.
        spec: How batches are made.
        offset: Where to begin.
    """

    def __init__(self, drain: QueueDrain, spec: BridgeSpec, offset: int) -> None:
        self._drain = drain
        self._spec = spec
        self._read_offset = offset
        self._batch_offset = offset
        self._holes: deque[Hole] = deque()
        self._records: deque[StoredRecord] = deque()

    async def next(self, max_records: int) -> Prepared | None:
        """The next batch; None if nothing arrived within a second.

        Args:
            max_records: A limit in addition to that of the spec.

        Raises:
            StorageError: The queue cannot be read.
        """
        spec = self._spec
        wanted = min(max_records, spec.batch_records)
        if not self._records and not await self._read(_LONGEST_WAIT_S):
            return None
        deadline_s = trio.current_time() + spec.batch_wait_s
        while len(self._records) < wanted and (remaining_s := deadline_s - trio.current_time()) > 0:
            if sum(len(record.value) for record in self._records) >= spec.batch_bytes:
                break
            await self._read(remaining_s)
        return self._cut(wanted)

    async def _read(self, max_wait_s: float) -> bool:
        """Read on; return whether anything was found."""
        waiting = await self._drain.read(self._read_offset, max_bytes=_READ_BYTES, max_wait_s=max_wait_s)
        if waiting.next_offset == self._read_offset:
            return False
        self._read_offset = waiting.next_offset
        self._holes.extend(waiting.holes)
        self._records.extend(waiting.records)
        return True

    def _cut(self, max_records: int) -> Prepared:
        """Make a batch of the first records that were read."""
        waiting = self._records
        count, size_bytes = self._first(max_records)
        records: list[StoredRecord] = [waiting.popleft() for _ in range(count)]
        next_offset = records[-1].offset + 1 if records else self._batch_offset
        records, rows, letters = self._project(records)
        skipped = NOTHING
        while self._holes and (not waiting or self._holes[0].next_offset <= waiting[0].offset):
            # The hole is between records of this batch, or directly before or after them.
            hole = self._holes.popleft()
            next_offset = max(next_offset, hole.next_offset)
            skipped = added(skipped, hole.counts)
        offsets = tuple(record.offset for record in records)
        batch = Batch(self._batch_offset, next_offset, offsets, rows, size_bytes)
        self._batch_offset = next_offset
        return Prepared(records, batch, letters, skipped)

    def _first(self, max_records: int) -> tuple[int, int]:
        """How many of the records that were read fit into a batch, at least one, and their bytes."""
        sizes = [len(record.value) + _RECORD_BYTES for record in islice(self._records, max_records)]
        ends = list(accumulate(sizes))
        count = max(bisect_right(ends, self._spec.batch_bytes), min(len(ends), 1))
        return count, ends[count - 1] if count else 0

    def _project(self, records: list[StoredRecord]) -> tuple[list[StoredRecord], Sequence[Row], list[Letter]]:
        """The records that have a row, their rows, and the other records."""
        projection = self._spec.projection
        try:
            return records, projection.rows(records), []
        except ProjectionError:
            # Some of them have no row: find out which.
            pass
        fit: list[StoredRecord] = []
        rows: list[Row] = []
        letters: list[Letter] = []
        for record in records:
            try:
                rows.append(projection.row(record))
            except ProjectionError as error:
                letters.append(Letter(record, str(error)))
            else:
                fit.append(record)
        return fit, rows, letters
