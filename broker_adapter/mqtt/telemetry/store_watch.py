"""Whether the store answers: asked every second, by the same way as everything else of the broker.

That a connection stands proves little, and engines inside the process have none; an answer proves what is wanted.
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
"""An answer that takes longer is none."""

_FIRST_TOLD_S: Final = 2.0
_TOLD_EVERY_S: Final = 10.0

# It is never written: all that counts is that somebody says so.
_ASKED_FOR: Final = b"mqtt/health"

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class StoreWatch:
    """Looks at one store.

    Args:
        adapter: The store, which has just been opened.

    Attributes:
        reason: Why it does not answer; empty while it does.
        loss_count: How often it ceased to.
        answer_s: How long answers took.
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
        """Shards that subscribers get nothing more of, because the store cannot read them."""
        return self._adapter.failed_shard_count

    @property
    def for_s(self) -> float:
        """For how long it has been as it is."""
        return trio.current_time() - self._since_s

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask()
            await trio.sleep(EVERY_S)

    async def ask(self) -> None:
        """Ask once."""
        began_s = trio.current_time()
        reason = f"no answer within {PATIENCE_S:.0f} s"
        with trio.move_on_after(PATIENCE_S):
            try:
                await self._adapter.get_state(_ASKED_FOR)
            except OverloadedError:
                # That, too, is an answer: what is published waits, and is told.
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
                log.warning("the store does not answer; it is asked until it does", reason=reason)
            else:
                log.info("the store answers again", was_lost_s=round(for_s, 1))
        self.reason = reason


async def tell_of_waiting(store_url: str, waiting: trio.CancelScope) -> None:
    """Say in the log that a store has not answered yet, every now and then until the scope is cancelled."""
    with waiting:
        await trio.sleep(_FIRST_TOLD_S)
        while True:
            log.warning("waiting for the store", store=store_url)
            await trio.sleep(_TOLD_EVERY_S)
