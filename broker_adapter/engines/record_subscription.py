"""Subscriptions and feeds of every engine: the batches that the engine delivers become records.

Where the batches come from is the engine's business: `journal.client`, or `broker_adapter.engines.pulled_batches`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from broker_adapter.adapter import LATEST
from broker_adapter.engines.open_calls import OpenCalls
from broker_adapter.engines.selection import from_time
from broker_adapter.engines.undecoded_batches import UndecodedBatch, divided
from broker_adapter.subscription import Delivery, Feed, Progress, Subscription
from shards.format.batch import iterate, read_records
from shards.format.columns import Column
from shards.format.record import Gap, StoredRecord
from shards.position import Start
from shards.subscriptions.events import Batches

B = TypeVar("B", bound=Batches)


class _Deliveries(Generic[B]):
    """The deliveries of one subscription.

    Args:
        calls: The adapter's; closing it ends the iteration.
        receive: Waits for the next item.
        now_us: Returns the time, for expired records.
        start: Where the subscription began.
        acknowledge: Acknowledges batches to the group; None without a group.
    """

    def __init__(
        self,
        calls: OpenCalls,
        receive: Callable[[], Coroutine[Any, Any, B | Progress]],
        now_us: Callable[[], int],
        start: Start,
        acknowledge: Callable[[B], object] | None,
    ) -> None:
        self._calls = calls
        self._receive = receive
        self._now_us = now_us
        self._start = start
        self._acknowledge = acknowledge
        self._next_offsets: dict[str, int] = {}
        self._parts: deque[Delivery] = deque()

    async def next(self) -> Delivery | Progress:
        """Wait for the next delivery or progress; batches of which all records have expired deliver nothing."""
        if self._parts and not self._calls.closed:
            await trio.lowlevel.checkpoint()
            return self._parts.popleft()
        while True:
            try:
                item = await self._calls.run(self._receive())
            except trio.ClosedResourceError:
                raise StopAsyncIteration from None
            if isinstance(item, Progress):
                return item
            self._divide(item)
            if self._parts:
                return self._parts.popleft()
            records = self._records(item)
            if self._acknowledge is None:
                if records:
                    return Delivery(item.shard, records, item.next_offset)
            elif records:
                done = partial(_acknowledged, self._acknowledge, item)
                return Delivery(item.shard, records, item.next_offset, acknowledge=done)
            else:
                self._acknowledge(item)

    def _divide(self, item: B) -> None:
        """Add the deliveries of one item to ``_parts``, if they can be made without decoding its batches."""

    def _records(self, item: B) -> list[StoredRecord | Gap]:
        """Records and gaps of one item. A range that a trim removed between two items becomes a gap."""
        shard, first_offset, next_offset = item.shard, item.first_offset, item.next_offset
        records = read_records(item.batches, start_offset=first_offset, end_offset=next_offset, now_us=self._now_us())
        if self._acknowledge is not None:
            # The ranges of a group's member need not follow one another.
            return records
        expected = self._next_offsets.get(shard)
        self._next_offsets[shard] = next_offset
        if expected is not None and expected < first_offset:
            return [Gap(expected, first_offset), *records]
        if expected is None and self._start.kind == "time":
            return from_time(records, self._start.value)
        return records


async def _acknowledged(acknowledge: Callable[[B], object], batches: B) -> None:
    acknowledge(batches)
    await trio.lowlevel.checkpoint()


class RecordSubscription(_Deliveries[B], Subscription):
    """A subscription whose engine delivers batches; see `_Deliveries` for the arguments."""

    async def __anext__(self) -> Delivery:
        while isinstance(item := await self.next(), Progress):
            # A subscription by filter reports it; only a feed shows it.
            pass
        return item


class RecordFeed(_Deliveries[B], Feed):
    """A feed whose engine delivers batches and progress; see `_Deliveries` for the other arguments.

    Args:
        start_lsn: The lsn after which it begins.
    """

    def __init__(
        self,
        calls: OpenCalls,
        receive: Callable[[], Coroutine[Any, Any, B | Progress]],
        now_us: Callable[[], int],
        start_lsn: int,
    ) -> None:
        super().__init__(calls, receive, now_us, LATEST, None)
        self.start_lsn = start_lsn

    __anext__ = _Deliveries.next

    def _divide(self, item: B) -> None:
        """See `_Deliveries`. What the headers do not tell needs decoding: which records have expired, and gaps."""
        shard, first_offset, next_offset = item.shard, item.first_offset, item.next_offset
        if self._next_offsets.get(shard, first_offset) < first_offset:
            return
        batches: list[UndecodedBatch] = []
        for at, header in iterate(item.batches):
            if header.is_gap or header.columns & Column.EXPIRES_AT:
                return
            if header.base_offset < next_offset and header.next_offset > first_offset:
                batches.append(UndecodedBatch(item.batches, at, header, first_offset, next_offset))
        if batches:
            self._next_offsets[shard] = next_offset
            self._parts.extend(divided(shard, batches))
