"""Retries of subscription reads that failed because of a shortage of open files or memory.

Such a shortage passes, and the records are still there. A subscription that left the shard out and continued would skip
records.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from shards.errors import StorageError

_log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 1.0
"""Interval of the retries; there is no event for the end of a shortage."""


class ReadRetries:
    """Calls each registered function once, after a pause; `run` is its task. There is at most one for each shard."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, Callable[[], None]]] = deque()
        self._any = trio.Event()

    def later(self, error: StorageError, call: Callable[[], None]) -> None:
        """Call a function when its read is to be retried. It must not block, and may be called when it is not needed.

        Args:
            error: Why the read failed.
            call: The function to call.
        """
        if not self._calls:
            _log.warning("reads of subscriptions failed and are retried every %g s: %s", RETRY_AFTER_S, error)
        self._calls.append((trio.current_time() + RETRY_AFTER_S, call))
        self._any.set()

    async def run(self) -> None:
        """Call the registered functions until cancelled."""
        while True:
            while self._calls:
                due_at, call = self._calls[0]
                await trio.sleep_until(due_at)
                self._calls.popleft()
                call()
            self._any = trio.Event()
            await self._any.wait()
