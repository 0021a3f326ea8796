"""The batches of one of the engine's subscriptions, pulled when the consumer asks for the next ones.

A slow consumer holds nothing but the subscription's positions, and in a group what it was handed.
"""

from __future__ import annotations

import logging
from typing import Final, cast

import trio

from journal.engine import Subscription
from shards.errors import StorageError
from shards.subscriptions.events import Batches, Notice, Progress, Push
from shards.subscriptions.unreadable_ranges import UnreadableRanges

_log = logging.getLogger(__name__)

_LARGEST_PUSH_BYTES: Final = 1 << 20


class PulledBatches:
    """See the module. The owner begins and ends it; one consumer at a time calls `next`.

    Args:
        shard: The subscription's one shard; None for a filter.
        credit_bytes: Bytes of batches that may be handed out and not taken yet.
        unreadable: Where ranges that cannot be read are noted.
        start_lsn: The lsn after which it begins, if it reports progress.
    """

    def __init__(
        self, *, shard: str | None, credit_bytes: int, unreadable: UnreadableRanges, start_lsn: int = 0
    ) -> None:
        self._shard = shard
        self._unreadable = unreadable
        self._start_lsn = start_lsn
        self._credit_bytes = max(1, credit_bytes)
        self._push_bytes = min(self._credit_bytes, _LARGEST_PUSH_BYTES)
        self._names: dict[int, str] = {}
        self._wake = trio.Event()
        self._subscription: Subscription | None = None

    # For the owner

    def begin(self, subscription: Subscription) -> None:
        """Pull from this subscription."""
        self._subscription = subscription
        # A group may have asked for the credit before, and got none.
        subscription.credit_changed()

    def end(self) -> None:
        """End the iteration, and the subscription."""
        subscription, self._subscription = self._subscription, None
        self._wake.set()
        if subscription is not None:
            subscription.close()

    def wake(self) -> None:
        """Note that the subscription may have something."""
        self._wake.set()

    def credit_bytes(self) -> int:
        """How many bytes may be handed out; 0 while there is no subscription to take them from."""
        return self._credit_bytes if self._subscription is not None else 0

    # For the consumer

    async def next(self) -> Batches | Progress:
        """Wait for the next batches, or for progress. Cancelling it loses nothing.

        Raises:
            trio.ClosedResourceError: It has ended.
            StorageError: The one shard was deleted, or cannot be read any more.
        """
        await trio.lowlevel.checkpoint()
        while (subscription := self._subscription) is not None:
            # Created before the check, so that everything after the check sets it.
            if self._wake.is_set():
                self._wake = trio.Event()
            item = await subscription.take(self._push_bytes)
            if isinstance(item, Push):
                subscription.credit_changed()
                name = self._names[item.reference]
                return Batches(name, item.first_offset, item.next_offset, b"".join(item.buffers), item.reference)
            if isinstance(item, Notice):
                progress = self._noted(item)
                if progress is not None:
                    return progress
            elif not subscription.has_more:
                await self._wake.wait()
        raise trio.ClosedResourceError("the subscription is closed")

    def acknowledge(self, batches: Batches) -> None:
        """Acknowledge batches to the group."""
        if self._subscription is not None:
            self._subscription.acknowledge(batches.reference, batches.first_offset, batches.next_offset)

    def _noted(self, notice: Notice) -> Progress | None:
        match notice.event:
            case "added":
                self._names[notice.reference] = notice.name
            case "progress":
                return Progress(notice.lsn)
            case "end":
                self.end()
                return Progress(max(notice.lsn, self._start_lsn))
            case _:
                self._lost(notice)
        return None

    def _lost(self, notice: Notice) -> None:
        """A shard was deleted or cannot be read: alone it ends the subscription, with a filter the others go on."""
        if self._shard is not None:
            raise cast("StorageError", notice.error)
        self._names.pop(notice.reference, None)
        if notice.event == "error" and self._unreadable.note(notice.name, notice.error):
            _log.error("a subscription continues without shard %r: %s", notice.name, notice.error)
