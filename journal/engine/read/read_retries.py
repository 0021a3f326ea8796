"""Reads for subscriptions that failed for lack of open files or memory: they are tried again after a moment.

Such a shortage passes, and what could not be read is still there. A subscription that left the shard out instead, and
went on, would skip records.
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
"""There is no event for the end of a shortage."""


class ReadRetries:
    """Calls back, once, everything that was put off; `run` is its task. There is at most one call per shard read."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, Callable[[], None]]] = deque()
        self._any = trio.Event()

    def later(self, error: StorageError, call: Callable[[], None]) -> None:
        """Call a function when its read is to be tried again. It must not block, and may find that it is too late.

        Args:
            error: Why the read failed.
            call: The function.
        """
        if not self._calls:
            _log.warning("subscriptions wait for a read, which is tried again every %g s: %s", RETRY_AFTER_S, error)
        self._calls.append((trio.current_time() + RETRY_AFTER_S, call))
        self._any.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            while self._calls:
                due_at, call = self._calls[0]
                await trio.sleep_until(due_at)
                self._calls.popleft()
                call()
            self._any = trio.Event()
            await self._any.wait()
