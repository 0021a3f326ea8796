"""A live feed of one filter over shards, shared by all sessions of this broker that need it.

It hands each record out once, and says which lsn it has handed out last: whoever joins takes what lies above that from
the tail, and the rest from the store. When its feed breaks, everybody leaves and catches up, and it begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from broker_adapter.adapter import Delivery, StorageAdapter
from broker_adapter.feed import Progress
from broker_adapter.mqtt.delivery.retrying import pause
from shards.errors import StorageError

if TYPE_CHECKING:
    from broker_adapter.mqtt.delivery.inbox import Inbox

_log = logging.getLogger(__name__)

_CREDIT_BYTES: Final = 4 << 20


class Tail:
    """See the module.

    Args:
        target: Filter over shards.
        hand_out: Called with each delivery; must not block.
        broken: Called when the feed has broken: what comes next does not follow what came before.

    Attributes:
        handed_lsn: The highest lsn handed out, or where the feed began.
        progress_lsn: Everything that matches up to here has been handed out.
        inboxes: Who needs it; nobody: it ends.
    """

    def __init__(self, target: str, hand_out: Callable[[Tail, Delivery], None], broken: Callable[[Tail], None]) -> None:
        self.target = target
        self.handed_lsn = 0
        self.progress_lsn = 0
        self.inboxes: set[Inbox] = set()
        self._hand_out = hand_out
        self._broken = broken
        self._established = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def is_established(self) -> bool:
        """Whether it hands out everything above `handed_lsn` from now on."""
        return self._established.is_set()

    async def wait_established(self) -> None:
        """Return when it `is_established`; it may have broken again by then."""
        await self._established.wait()

    def end(self) -> None:
        """Stop, for good."""
        self._scope.cancel()

    async def run(self, adapter: StorageAdapter) -> None:
        """Follow the store until ended."""
        with self._scope:
            attempt = 0
            while True:
                try:
                    async with adapter.follow(self.target, credit_bytes=_CREDIT_BYTES) as feed:
                        self.handed_lsn = max(self.handed_lsn, feed.start_lsn)
                        self.progress_lsn = self.handed_lsn
                        self._established.set()
                        async for item in feed:
                            attempt = 0
                            if isinstance(item, Progress):
                                self.progress_lsn = max(self.progress_lsn, item.lsn)
                            else:
                                self._hand_out(self, item)
                except StorageError as error:
                    _log.warning("the tail of %r broke and begins anew: %s", self.target, error)
                else:
                    return  # the adapter is being closed
                if self._established.is_set():
                    self._established = trio.Event()
                    self._broken(self)
                await pause(attempt)
                attempt += 1
