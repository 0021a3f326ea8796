"""A subscription that pulls: batches that its source has ready become deliveries when the consumer asks for them.

A slow consumer holds nothing but its positions, and in a group what it was handed. What the source is lies outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

import trio

from broker_adapter.engines.open_calls import OpenCalls
from broker_adapter.engines.selection import PushedRecords
from broker_adapter.subscription import Delivery, Subscription
from shards.errors import StorageError
from shards.position import Start
from shards.subscriptions.events import Notice, Push

_log = logging.getLogger(__name__)

_LARGEST_PUSH_BYTES: Final = 1 << 20


class Source(Protocol):
    """Where the batches come from."""

    @property
    def has_more(self) -> bool:
        """Whether `take` may give something."""

    async def take(self, max_bytes: int) -> Push | Notice | None:
        """The next push or notice; None when there is none now. Cancelling loses nothing."""

    def acknowledge(self, reference: int, first_offset: int, next_offset: int) -> None:
        """The group is done with records."""

    def credit_changed(self) -> None:
        """There is room for more."""


class PulledSubscription(Subscription):
    """See the module.

    Args:
        calls: The adapter's; closing it ends the iteration.
        now_us: Tells the time, for expired records.
        start: Where it begins.
        shard: Its one shard; None for a filter.
        is_shared: It is a group's.
        credit_bytes: Batch bytes that may be under way.
    """

    def __init__(
        self,
        calls: OpenCalls,
        now_us: Callable[[], int],
        start: Start,
        *,
        shard: str | None,
        is_shared: bool,
        credit_bytes: int,
    ) -> None:
        self._calls = calls
        self._now_us = now_us
        self._shard = shard
        self._is_shared = is_shared
        self._credit_bytes = max(1, credit_bytes)
        self._records = PushedRecords(start, is_shared=is_shared)
        self._names: dict[int, str] = {}
        self._news = trio.Event()
        self._source: Source | None = None

    # What the owner calls

    def begin(self, source: Source) -> None:
        """Pull from here."""
        self._source = source
        # A group may have looked for credit before there was a source to ask.
        source.credit_changed()

    def end(self) -> None:
        """Have the iteration end."""
        self._source = None
        self._news.set()

    def wake(self) -> None:
        """Look again: the source may have something."""
        self._news.set()

    def credit_bytes(self) -> int:
        """How much may lie ready here; nothing before there is a source to take it from."""
        return self._credit_bytes if self._source is not None else 0

    # What the consumer calls

    async def __anext__(self) -> Delivery:
        try:
            return await self._calls.run(self._next())
        except trio.ClosedResourceError:
            raise StopAsyncIteration from None

    async def _next(self) -> Delivery:
        await trio.lowlevel.checkpoint()
        while (source := self._source) is not None:
            # Made anew before looking: whatever comes after the look sets this one.
            if self._news.is_set():
                self._news = trio.Event()
            item = await source.take(min(self._credit_bytes, _LARGEST_PUSH_BYTES))
            if isinstance(item, Push):
                source.credit_changed()
                delivery = self._delivery(source, item)
                if delivery is not None:
                    return delivery
            elif isinstance(item, Notice):
                self._note(item)
            elif not source.has_more:
                await self._news.wait()
        raise trio.ClosedResourceError("the subscription is closed")

    def _delivery(self, source: Source, push: Push) -> Delivery | None:
        name = self._names[push.reference]
        records = self._records.take(
            name, b"".join(push.buffers), push.first_offset, push.next_offset, now_us=self._now_us()
        )
        if not self._is_shared:
            return Delivery(name, records, push.next_offset) if records else None
        if not records:
            # All of it had expired.
            source.acknowledge(push.reference, push.first_offset, push.next_offset)
            return None
        return Delivery(name, records, push.next_offset, partial(self._acknowledge, source, push))

    async def _acknowledge(self, source: Source, push: Push) -> None:
        source.acknowledge(push.reference, push.first_offset, push.next_offset)
        await trio.lowlevel.checkpoint()

    def _note(self, notice: Notice) -> None:
        """Learn a shard's name, or that it ended: alone that ends the subscription, under a filter the others go on."""
        if notice.event == "added":
            self._names[notice.reference] = notice.name
        elif notice.event in ("removed", "error") and self._shard is not None:
            raise cast("StorageError", notice.error)
        elif notice.event == "error":
            _log.error("a subscription goes on without shard %r: %s", notice.name, notice.error)
