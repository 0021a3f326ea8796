"""Makes batches of rows from a queue's records: read ahead, project, and cut by count, bytes and time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
        project, max_bytes = self._spec.projection.row, self._spec.batch_bytes
        waiting = self._records
        records: list[StoredRecord] = []
        rows: list[Row] = []
        letters: list[Letter] = []
        size_bytes = 0
        next_offset = self._batch_offset
        while waiting and len(records) + len(letters) < max_records:
            record = waiting[0]
            record_bytes = len(record.value) + _RECORD_BYTES
            if records and size_bytes + record_bytes > max_bytes:
                break
            waiting.popleft()
            next_offset = record.offset + 1
            size_bytes += record_bytes
            try:
                rows.append(project(record))
            except ProjectionError as error:
                letters.append(Letter(record, str(error)))
            else:
                records.append(record)
        skipped = NOTHING
        while self._holes and (not waiting or self._holes[0].next_offset <= waiting[0].offset):
            # The hole is between records of this batch, or directly before or after them.
            hole = self._holes.popleft()
            next_offset = max(next_offset, hole.next_offset)
            skipped = added(skipped, hole.counts)
        batch = Batch(
            self._batch_offset, next_offset, tuple(record.offset for record in records), tuple(rows), size_bytes
        )
        self._batch_offset = next_offset
        return Prepared(records, batch, letters, skipped)
