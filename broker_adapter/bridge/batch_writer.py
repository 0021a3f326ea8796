"""Writes one batch to a sink, until each of its rows is accepted or finally refused.

A batch that is refused as a whole is split, until the refused row is alone. That row is retried a few times, because a
sink may accept it a moment later, and is given up then. When the sink refuses a single row and accepts those after it,
the row is given up at once: a retry would store it after them, out of order. An outage is not a refusal: it ends the
drain run.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from broker_adapter.bridge.batcher import Letter, Prepared
from broker_adapter.sinks import Batch, BatchRefusedError, Row, RowsRefusedError, Sink
from shards.back_off import BackOff
from shards.format.record import StoredRecord

_ONE_LINE = 300


class BatchWriter:
    """Writes to one sink.

    Args:
        max_refusals: A row is given up after this many refusals.
        pause_s: Wait before a row is tried again, in seconds; doubled each time.
        give_up: Called with records that are finally refused, before anything after them is tried.
    """

    def __init__(
        self, sink: Sink, max_refusals: int, pause_s: float, give_up: Callable[[Sequence[Letter]], Awaitable[None]]
    ) -> None:
        self._sink = sink
        self._max_refusals = max_refusals
        self._pauses = BackOff(pause_s, math.inf, jitter=0.0)
        self._give_up = give_up

    async def settle(self, prepared: Prepared, *, is_alone: bool) -> list[Letter]:
        """Write a batch; return the records that the sink refuses, in order.

        Args:
            is_alone: No later batch is started before this one is finished. Only then it is split: otherwise rows of
                later batches could be stored before the rest of this one.

        Raises:
            BatchRefusedError: It has to be written alone, to find out which row is refused.
            SinkUnavailableError: An outage. Which rows were accepted is unknown.
            DriverFencedError: The queue has another driver.
            StorageError: Raised by ``give_up``.
        """
        if not prepared.records:
            return []
        letters: list[Letter] = []
        # A list instead of recursion: every row of a batch may be refused by itself.
        parts = [(prepared.batch, prepared.records)]
        while parts:
            batch, records = parts.pop()
            try:
                await self._sink.write(batch)
            except BatchRefusedError as error:
                if len(records) == 1:
                    letters += await self._retry_row(batch, records[0], str(error))
                    continue
                if not is_alone:
                    raise
                parts += [
                    (_part(batch, first, last), records[first:last])
                    for first, last in reversed(_parts(len(records), error.index))
                ]
            except RowsRefusedError as error:
                for refusal in error.refusals:
                    record, row = records[refusal.index], batch.rows[refusal.index]
                    if is_alone and refusal.index == len(batch.rows) - 1:
                        letters += await self._retry_row(_behind(batch, record, row), record, refusal.reason)
                    else:
                        # The rows after it were accepted, or may have been: a retry would store this row out of order.
                        letters += await self._set_aside(record, refusal.reason)
        return letters

    async def _retry_row(self, batch: Batch, record: StoredRecord, reason: str) -> list[Letter]:
        """Retry a refused row, with growing pauses."""
        for attempt in range(self._max_refusals - 1):
            await trio.sleep(self._pauses.delay_s(attempt))
            try:
                await self._sink.write(batch)
            except (BatchRefusedError, RowsRefusedError) as error:
                reason = error.refusals[0].reason if isinstance(error, RowsRefusedError) else str(error)
            else:
                return []
        return await self._set_aside(record, reason)

    async def _set_aside(self, record: StoredRecord, reason: str) -> list[Letter]:
        letter = Letter(record, " ".join(reason.split())[:_ONE_LINE])
        await self._give_up([letter])
        return [letter]


def _parts(count: int, culprit: int | None) -> list[tuple[int, int]]:
    """The ranges into which a refused batch is split: around the row that the sink names, or two halves."""
    if culprit is None or not 0 <= culprit < count:
        return [(0, count // 2), (count // 2, count)]
    parts = [(0, culprit), (culprit, culprit + 1), (culprit + 1, count)]
    return [(first, last) for first, last in parts if first < last]


def _part(batch: Batch, first: int, last: int) -> Batch:
    """Some rows of a batch, with the offset range that belongs to them."""
    return Batch(
        batch.first_offset if first == 0 else batch.offsets[first - 1] + 1,
        batch.next_offset if last == len(batch.rows) else batch.offsets[last - 1] + 1,
        batch.offsets[first:last],
        batch.rows[first:last],
        batch.size_bytes * (last - first) // len(batch.rows),
    )


def _behind(batch: Batch, record: StoredRecord, row: Row) -> Batch:
    """One row of a batch whose other rows were all accepted."""
    return Batch(batch.next_offset, batch.next_offset, (record.offset,), (row,), len(record.value))
