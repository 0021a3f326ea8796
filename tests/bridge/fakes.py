"""A sink in memory that fails on request: the target of a bridge whose driver is tested.

It is a whole sink, with position and epochs if wanted; what it cannot show is a network. The real ones are in
``tests/sinks``, and behind whole brokers in ``tests/bridge/outages``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from broker_adapter.sinks import (
    Batch,
    BatchRefusedError,
    DriverFencedError,
    RowsRefusedError,
    Sink,
    SinkContext,
    SinkUnavailableError,
)
from broker_adapter.sinks.errors import Refusal


def happened() -> trio.Event:
    """An event that is set."""
    event = trio.Event()
    event.set()
    return event


@attrs.define(eq=False)
class Shelf:
    """What a sink keeps, for all its writers.

    Attributes:
        offsets: Of the rows that were taken, in order.
        values: Their payloads.
        position: Of a sink that keeps one.
        epoch: The highest that was seen.
        is_out: Nothing is taken.
        takes_before_failing: So many more batches are taken; then it is out.
        half_taken: When it goes out, the batch under way may still be taken, without a reply.
        refuses: Tells a payload that is refused.
        names_rows: A refusal shows which row it was, and the others are taken.
        names_culprit: A refusal of a batch as a whole shows which row is to blame.
        breaks_over: Tells a payload over which the shelf breaks: an outage, each time that it is in a batch.
        refusal_count: Batches that were refused as a whole; what was under way behind them is not taken.
        raises: Makes the error that each write raises, if it is not None: one that no sink may raise, for instance.
        opens: Makes the error that opening it raises, if it is not None.
        write_s: How long a write takes.
        largest: Records of the largest batch.
        largest_under_way: Most writes at once.
    """

    offsets: list[int] = attrs.Factory(list)
    values: list[bytes] = attrs.Factory(list)
    keeps_position: bool = False
    max_in_flight: int = 1
    position: int | None = None
    epoch: int = 0
    is_out: bool = False
    takes_before_failing: int | None = None
    half_taken: bool = False
    refuses: Callable[[bytes], bool] = lambda _value: False
    names_rows: bool = False
    names_culprit: bool = False
    breaks_over: Callable[[bytes], bool] = lambda _value: False
    refusal_count: int = 0
    raises: Callable[[], Exception] | None = None
    opens: Callable[[], Exception] | None = None
    write_s: float = 0.0
    largest: int = 0
    under_way: int = 0
    largest_under_way: int = 0
    check_count: int = 0
    last_write: trio.Event = attrs.Factory(happened)
    changed: trio.Event = attrs.Factory(trio.Event)

    @asynccontextmanager
    async def open(self, context: SinkContext) -> AsyncIterator[Sink]:
        if self.opens is not None:
            raise self.opens()
        yield ShelfSink(self, context)

    async def wait_for(self, count: int) -> None:
        """Return when it has so many rows."""
        while len(self.offsets) < count:
            self.changed = trio.Event()
            await self.changed.wait()


class ShelfSink(Sink):
    """One driver's way to a shelf."""

    def __init__(self, shelf: Shelf, context: SinkContext) -> None:
        self._shelf = shelf
        self._context = context
        self.keeps_position = shelf.keeps_position
        self.max_in_flight = shelf.max_in_flight

    async def check(self) -> None:
        await trio.lowlevel.checkpoint()
        self._shelf.check_count += 1
        if self._shelf.is_out:
            raise SinkUnavailableError("the shelf is out")

    async def position(self) -> int | None:
        await trio.lowlevel.checkpoint()
        self._fence()
        return self._shelf.position

    async def write(self, batch: Batch) -> None:
        shelf = self._shelf
        shelf.under_way += 1
        shelf.largest_under_way = max(shelf.largest_under_way, shelf.under_way)
        before, shelf.last_write = shelf.last_write, trio.Event()
        mine = shelf.last_write
        refusal_count = shelf.refusal_count
        try:
            await trio.sleep(shelf.write_s)
            await before.wait()
            if shelf.refusal_count > refusal_count:
                raise SinkUnavailableError("the shelf ended the connection over a batch before this one")
            self._write(batch)
        finally:
            shelf.under_way -= 1
            mine.set()

    def _write(self, batch: Batch) -> None:
        shelf = self._shelf
        if shelf.raises is not None:
            raise shelf.raises()
        if shelf.is_out:
            raise SinkUnavailableError("the shelf is out")
        if any(shelf.breaks_over(_payload(row["payload"])) for row in batch.rows):
            raise SinkUnavailableError("it broke")
        refused = [index for index, row in enumerate(batch.rows) if shelf.refuses(_payload(row["payload"]))]
        if shelf.takes_before_failing is not None:
            shelf.takes_before_failing -= 1
            if shelf.takes_before_failing < 0:
                shelf.is_out, shelf.takes_before_failing = True, None
                if shelf.half_taken and not refused:
                    self._take(batch, range(len(batch.rows)))
                raise SinkUnavailableError("the shelf went out")
        if refused and not shelf.names_rows:
            shelf.refusal_count += 1
            raise BatchRefusedError("the shelf does not want that", index=refused[0] if shelf.names_culprit else None)
        self._take(batch, [index for index in range(len(batch.rows)) if index not in refused])
        if refused:
            raise RowsRefusedError(
                "the shelf does not want some", tuple(Refusal(index, "not wanted") for index in refused)
            )

    def _take(self, batch: Batch, indexes: range | list[int]) -> None:
        shelf = self._shelf
        if shelf.keeps_position:
            self._fence()
            assert shelf.position is None or batch.first_offset >= shelf.position
            shelf.position = batch.next_offset
        shelf.largest = max(shelf.largest, len(batch.rows))
        for index in indexes:
            shelf.offsets.append(batch.offsets[index])
            shelf.values.append(_payload(batch.rows[index]["payload"]))
        shelf.changed.set()

    def _fence(self) -> None:
        if self._context.epoch < self._shelf.epoch:
            raise DriverFencedError("a later driver was here")
        self._shelf.epoch = self._context.epoch

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _payload(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value
