"""Locks by name: actions about one client wait for each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class KeyedLock:
    """Locks by name that exist only while a task holds or awaits them."""

    def __init__(self) -> None:
        self._locks: dict[str, trio.Lock] = {}

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name; waiting tasks get it in the order in which they came."""
        lock = self._locks.setdefault(name, trio.Lock())
        try:
            await lock.acquire()
        except BaseException:
            self._forget(name, lock)
            raise
        try:
            yield
        finally:
            lock.release()
            self._forget(name, lock)

    def _forget(self, name: str, lock: trio.Lock) -> None:
        if not lock.locked() and self._locks.get(name) is lock:
            del self._locks[name]
