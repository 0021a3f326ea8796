"""Whether the store answers: asked every second, by the same way as everything else of the broker.

That a connection stands proves little, and engines inside the process have none; an answer proves what is wanted.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from journal.histogram import DURATION_BOUNDS_S, Histogram
from shards.errors import OverloadedError, StorageError

EVERY_S: Final = 1.0
PATIENCE_S: Final = 3.0
"""An answer that takes longer is none."""

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
            self._since_s = began_s if reason else now_s
            self.loss_count += bool(reason)
            if reason:
                log.warning("the store does not answer", reason=reason)
            else:
                log.info("the store answers again")
        self.reason = reason
