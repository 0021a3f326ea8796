"""Receive buffers: a bounded pool shared by all connections.

Frames are turned into journal entries where they were received, so a buffer is in use until every commit group that
lies in it is durable. That the pool is bounded is the back-pressure: when all buffers wait for the disk, nobody reads
from a socket. A connection that waits for its own peer must not be the reason: meanwhile it lends its buffer to the
pool, which asks for it back when nothing else is left.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from journal.protocol.frames import APPEND_HEAD

SLACK_BYTES = APPEND_HEAD.size
"""Room behind what may be received, so that a head can be unpacked before it is known to be complete."""


class ReceiveBuffer:
    """A buffer and the number of those who still need its bytes."""

    __slots__ = ("_pool", "size_bytes", "users", "view")

    def __init__(self, pool: BufferPool | None, size_bytes: int) -> None:
        self._pool = pool
        self.size_bytes = size_bytes
        self.view = memoryview(bytearray(size_bytes + SLACK_BYTES))
        self.users = 1

    @property
    def is_pooled(self) -> bool:
        """Whether others wait for it."""
        return self._pool is not None

    def hold(self) -> None:
        """One more needs it."""
        self.users += 1

    def release(self) -> None:
        """One less needs it; the last one gives it back."""
        self.users -= 1
        if not self.users and self._pool is not None:
            self._pool.give_back(self)


class BufferPool:
    """Up to ``count`` buffers of ``size_bytes``; made when they are first needed, kept for ever."""

    def __init__(self, size_bytes: int, count: int) -> None:
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
        """Its holder waits for its peer. ``evacuate`` may be called once, to release the buffer at once."""
        self._lent[evacuate] = None
        self._waiting.unpark()

    def end_loan(self, evacuate: Callable[[], None]) -> None:
        """The holder goes on; whether it still has the buffer it knows itself."""
        self._lent.pop(evacuate, None)

    async def take(self) -> ReceiveBuffer:
        """A free buffer with one user, as soon as there is one; in the order of asking."""
        while (buffer := self.take_nowait()) is None:
            await self._waiting.park()
        return buffer

    def give_back(self, buffer: ReceiveBuffer) -> None:
        """Called by the last user's release."""
        self._free.append(buffer)
        self._waiting.unpark()
