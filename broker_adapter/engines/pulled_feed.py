"""A feed that pulls: batches that its source has ready become deliveries when the consumer asks for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from broker_adapter.adapter import LATEST
from broker_adapter.engines.open_calls import OpenCalls
from broker_adapter.engines.pulled_subscription import Source
from broker_adapter.engines.selection import PushedRecords
from broker_adapter.feed import Feed, Progress
from broker_adapter.subscription import Delivery
from shards.subscriptions.events import Notice, Push

_log = logging.getLogger(__name__)

_LARGEST_PUSH_BYTES: Final = 1 << 20


class PulledFeed(Feed):
    """See the module.

    Args:
        calls: The adapter's; closing it ends the iteration.
        now_us: Tells the time, for expired records.
        start_lsn: Where it begins.
        credit_bytes: Batch bytes that may be under way.
    """

    def __init__(self, calls: OpenCalls, now_us: Callable[[], int], start_lsn: int, *, credit_bytes: int) -> None:
        self.start_lsn = start_lsn
        self._calls = calls
        self._now_us = now_us
        self._push_bytes = max(1, min(credit_bytes, _LARGEST_PUSH_BYTES))
        self._records = PushedRecords(LATEST, is_shared=False)
        self._names: dict[int, str] = {}
        self._news = trio.Event()
        self._source: Source | None = None

    # What the owner calls

    def begin(self, source: Source) -> None:
        """Pull from here."""
        self._source = source

    def end(self) -> None:
        """Have the iteration end."""
        self._source = None
        self._news.set()

    def wake(self) -> None:
        """Look again: the source may have something."""
        self._news.set()

    # What the consumer calls

    async def __anext__(self) -> Delivery | Progress:
        try:
            return await self._calls.run(self._next())
        except trio.ClosedResourceError:
            raise StopAsyncIteration from None

    async def _next(self) -> Delivery | Progress:
        await trio.lowlevel.checkpoint()
        while (source := self._source) is not None:
            # Made anew before looking: whatever comes after the look sets this one.
            if self._news.is_set():
                self._news = trio.Event()
            item = await source.take(self._push_bytes)
            if isinstance(item, Push):
                delivery = self._delivery(item)
                if delivery is not None:
                    return delivery
            elif isinstance(item, Notice):
                progress = self._note(item)
                if progress is not None:
                    return progress
            elif not source.has_more:
                await self._news.wait()
        raise trio.ClosedResourceError("the feed is over")

    def _delivery(self, push: Push) -> Delivery | None:
        name = self._names[push.reference]
        batches = b"".join(push.buffers)
        records = self._records.take(name, batches, push.first_offset, push.next_offset, now_us=self._now_us())
        return Delivery(name, records, push.next_offset) if records else None

    def _note(self, notice: Notice) -> Progress | None:
        match notice.event:
            case "added":
                self._names[notice.reference] = notice.name
            case "removed":
                self._names.pop(notice.reference, None)
            case "error":
                _log.error("a feed goes on without shard %r: %s", notice.name, notice.error)
            case "progress":
                return Progress(notice.lsn)
            case "end":
                self._source = None
                return Progress(max(notice.lsn, self.start_lsn))
        return None
