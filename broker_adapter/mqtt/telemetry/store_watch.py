"""Checks every second whether the store answers, over the same connection as the broker's other calls.

An open connection proves little, and engines inside the process have none; an answer proves that the store works.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import OverloadedError, StorageError
from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram

EVERY_S: Final = 1.0
PATIENCE_S: Final = 3.0
"""An answer that takes longer, in seconds, counts as missing."""

_FIRST_TOLD_S: Final = 2.0
_TOLD_EVERY_S: Final = 10.0

# This key is never written: only the answer matters.
_CHECKED_KEY: Final = b"mqtt/health"

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class StoreWatch:
    """Observes one store.

    Args:
        adapter: The store, which has just been opened.

    Attributes:
        reason: Why it does not answer; empty while it does.
        loss_count: How often it stopped answering.
        answer_s: Histogram of the time to answer, in seconds.
    """

    def __init__(self, adapter: StorageAdapter) -> None:
        self._adapter = adapter
        self._since_s = trio.current_time()
        self.reason = ""
        self.loss_count = 0
        self.answer_s = Histogram(DURATION_BOUNDS_S)

    @property
    def is_up(self) -> bool:
        """Whether the store answers."""
        return not self.reason

    @property
    def failed_shard_count(self) -> int:
        """Shards without deliveries to subscribers, because the store cannot read them."""
        return self._adapter.failed_shard_count

    @property
    def for_s(self) -> float:
        """For how many seconds `is_up` has not changed."""
        return trio.current_time() - self._since_s

    async def run(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await self.ask()
            await trio.sleep(EVERY_S)

    async def ask(self) -> None:
        """Check once."""
        began_s = trio.current_time()
        reason = f"no answer within {PATIENCE_S:.0f} s"
        with trio.move_on_after(PATIENCE_S):
            try:
                await self._adapter.get_state(_CHECKED_KEY)
            except OverloadedError:
                # An overloaded store is up: publishes wait, and publishers notice.
                reason = ""
            except StorageError as error:
                reason = str(error)
            else:
                reason = ""
        now_s = trio.current_time()
        if not reason:
            self.answer_s.observe(now_s - began_s)
        if bool(reason) == self.is_up:
            for_s = now_s - self._since_s
            self._since_s = began_s if reason else now_s
            self.loss_count += bool(reason)
            if reason:
                log.warning("the store does not answer; it is tried again until it does", reason=reason)
            else:
                log.info("the store answers again", was_lost_s=round(for_s, 1))
        self.reason = reason


async def log_waiting(store_url: str, waiting: trio.CancelScope) -> None:
    """Log at intervals that a store has not answered yet, until the scope is cancelled."""
    with waiting:
        await trio.sleep(_FIRST_TOLD_S)
        while True:
            log.warning("waiting for the store", store=store_url, hint="is it running there? --store URL names another")
            await trio.sleep(_TOLD_EVERY_S)
