"""Receive buffers: a bounded pool shared by all connections.

Frames become journal entries in place, so a buffer is in use until every commit group with entries in it is durable.
The bound of the pool is the back-pressure: when all buffers wait for the disk, no socket is read. If the disk or a log
store stands still, that would stop reads, too: entries are copied out of the buffers then (`Committer.free_memory`). A
connection that waits for its own peer lends its buffer to the pool, which takes it back when no other one is free.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from journal.protocol.frames import APPEND_HEAD

SLACK_BYTES = APPEND_HEAD.size
"""Room after the receivable bytes, so that a head can be unpacked before it is known to be complete."""

_LOOK_AGAIN_S = 0.2
"""So long a task waits for a buffer before it asks again for memory to be freed."""


class ReceiveBuffer:
    """A buffer and the number of its users."""

    __slots__ = ("_pool", "size_bytes", "users", "view")

    def __init__(self, pool: BufferPool | None, size_bytes: int) -> None:
        self._pool = pool
        self.size_bytes = size_bytes
        self.view = memoryview(bytearray(size_bytes + SLACK_BYTES))
        self.users = 1

    @property
    def is_pooled(self) -> bool:
        """Whether it belongs to the pool."""
        return self._pool is not None

    def hold(self) -> None:
        """Add a user."""
        self.users += 1

    def release(self) -> None:
        """Remove a user; the last one returns the buffer to the pool."""
        self.users -= 1
        if not self.users and self._pool is not None:
            self._pool.give_back(self)


class BufferPool:
    """Up to ``count`` buffers of ``size_bytes``; created on first use and never freed.

    Args:
        size_bytes: Size of a buffer.
        count: Number of buffers.
        on_shortage: Called before a task waits for a buffer, to have buffers given back that can be.
    """

    def __init__(self, size_bytes: int, count: int, on_shortage: Callable[[], None] = lambda: None) -> None:
        self._on_shortage = on_shortage
        self._size_bytes = size_bytes
        self._left_to_make = count
        self._free: list[ReceiveBuffer] = []
        self._waiting = trio.lowlevel.ParkingLot()
        self._lent: dict[Callable[[], None], None] = {}
        self.size_bytes = size_bytes

    def take_nowait(self) -> ReceiveBuffer | None:
        """A free buffer with one user, or None."""
        while True:
            if self._free:
                buffer = self._free.pop()
                buffer.users = 1
                return buffer
            if self._left_to_make:
                self._left_to_make -= 1
                return ReceiveBuffer(self, self._size_bytes)
            if not self._lent:
                return None
            evacuate = next(iter(self._lent))
            del self._lent[evacuate]
            evacuate()

    def lend(self, evacuate: Callable[[], None]) -> None:
        """Lend a buffer while its user waits for its peer. ``evacuate`` may be called once, to release the buffer."""
        self._lent[evacuate] = None
        self._waiting.unpark()

    def end_loan(self, evacuate: Callable[[], None]) -> None:
        """End the loan: the user continues. Only the user knows whether it still has the buffer."""
        self._lent.pop(evacuate, None)

    async def take(self) -> ReceiveBuffer:
        """Wait for a free buffer and return it with one user; waiters are served in order, unless that takes long."""
        while (buffer := self.take_nowait()) is None:
            self._on_shortage()
            # It may have given some back at once.
            if (buffer := self.take_nowait()) is not None:
                return buffer
            with trio.move_on_after(_LOOK_AGAIN_S):
                await self._waiting.park()
        return buffer

    def give_back(self, buffer: ReceiveBuffer) -> None:
        """Return a buffer; called when its last user releases it."""
        self._free.append(buffer)
        self._waiting.unpark()
