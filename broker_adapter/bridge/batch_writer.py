"""Writing one batch to a sink until each of its rows is taken or refused for good.

A batch that is refused is parted, until the row is alone that is to blame. That is tried a few times more, for a sink
may refuse what it takes a moment later, and then given up. A row that is refused by itself, while the sink takes those
behind it, is given up at once: it would come behind them. An outage refuses nothing: it ends the attempt as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from broker_adapter.bridge.batcher import Letter, Prepared
from broker_adapter.sinks import Batch, BatchRefusedError, Row, RowsRefusedError, Sink
from shards.format.record import StoredRecord

_ONE_LINE = 300


class BatchWriter:
    """Writes to one sink.

    Args:
        max_refusals: How often a row may be refused.
        pause_s: Before a row is tried again; it doubles each time.
        give_up: Told of records that are refused for good, before anything behind it is tried.
    """

    def __init__(
        self, sink: Sink, max_refusals: int, pause_s: float, give_up: Callable[[Sequence[Letter]], Awaitable[None]]
    ) -> None:
        self._sink = sink
        self._max_refusals = max_refusals
        self._pause_s = pause_s
        self._give_up = give_up

    async def settle(self, prepared: Prepared, *, is_alone: bool) -> list[Letter]:
        """Write a batch; return the records that the sink refuses, in order.

        Args:
            is_alone: No batch behind it is begun before it is settled. Only then it is parted: the rest of it would
                else come behind them.

        Raises:
            BatchRefusedError: It has to be written alone, to find out which row is to blame.
            SinkUnavailableError: An outage. What was taken is not known.
            StaleEpochError: The queue has another driver.
            StorageError: Of ``give_up``.
        """
        if not prepared.records:
            return []
        letters: list[Letter] = []
        # A list and no recursion: every row of a batch may be refused by itself.
        parts = [(prepared.batch, prepared.records)]
        while parts:
            batch, records = parts.pop()
            try:
                await self._sink.write(batch)
            except BatchRefusedError as error:
                if len(records) == 1:
                    letters += await self._insist(batch, records[0], str(error))
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
                        letters += await self._insist(_behind(batch, record, row), record, refusal.reason)
                    else:
                        # What lies behind it was taken, or may have been: tried again it would come too late.
                        letters += await self._set_aside(record, refusal.reason)
        return letters

    async def _insist(self, batch: Batch, record: StoredRecord, reason: str) -> list[Letter]:
        """Try a row that was refused a few times more."""
        pause_s = self._pause_s
        for _ in range(self._max_refusals - 1):
            await trio.sleep(pause_s)
            pause_s *= 2
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
    """The ranges in which to try a refused batch: around the row that is to blame, or two halves."""
    if culprit is None or not 0 <= culprit < count:
        return [(0, count // 2), (count // 2, count)]
    parts = [(0, culprit), (culprit, culprit + 1), (culprit + 1, count)]
    return [(first, last) for first, last in parts if first < last]


def _part(batch: Batch, first: int, last: int) -> Batch:
    """Some of a batch's rows, with their part of its range."""
    return Batch(
        batch.first_offset if first == 0 else batch.offsets[first - 1] + 1,
        batch.next_offset if last == len(batch.rows) else batch.offsets[last - 1] + 1,
        batch.offsets[first:last],
        batch.rows[first:last],
        batch.size_bytes * (last - first) // len(batch.rows),
    )


def _behind(batch: Batch, record: StoredRecord, row: Row) -> Batch:
    """One row of a batch of which all others were taken."""
    return Batch(batch.next_offset, batch.next_offset, (record.offset,), (row,), len(record.value))
