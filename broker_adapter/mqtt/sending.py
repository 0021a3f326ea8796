"""What goes out on one connection: bytes in order, one writer while there is something to write, a bound that is told.

Bytes are gathered and sent together when `flush` is called, at once if the stream takes them. The writer is a task only
as long as something waits for the peer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

import trio

_PIECE_BYTES: Final = 64 * 1024


class PeerStalledError(Exception):
    """The peer took nothing for so long that it counts as gone."""


@runtime_checkable
class SendsNow(Protocol):
    """A stream that can send without waiting."""

    def send_nowait(self, data: bytes) -> int:
        """Send what goes at once; returns the number of bytes."""


class Output:
    """The outgoing side of a connection.

    Args:
        stream: Where it goes.
        start: Starts a task that ends with the connection.
        limit_bytes: Bound that `has_room` tells of; who sends minds it.
        stalled_after_s: A peer that takes nothing for so long is gone.
        on_room: Called when there is room again.

    Attributes:
        waiting_bytes: What waits to be sent.
        sent_bytes: All that was sent so far.
    """

    def __init__(
        self,
        stream: trio.abc.SendStream,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        *,
        limit_bytes: int,
        stalled_after_s: float,
        on_room: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._start = start
        self._limit_bytes = limit_bytes
        self._stalled_after_s = stalled_after_s
        self._on_room = on_room
        self._send_nowait = stream.send_nowait if isinstance(stream, SendsNow) else None
        self._waiting: list[bytes] = []
        self._is_writing = False
        self._is_broken = False
        self._progress = trio.lowlevel.ParkingLot()
        self.waiting_bytes = 0
        self.sent_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether less waits than may wait."""
        return self.waiting_bytes < self._limit_bytes

    def send(self, data: bytes) -> None:
        """Put whole packets behind what waits; they go with the next `flush`."""
        if self._is_broken:
            return
        self._waiting.append(data)
        self.waiting_bytes += len(data)

    def flush(self) -> None:
        """Send what waits. Never blocks.

        Raises:
            trio.BrokenResourceError: The connection is gone.
        """
        waiting = self._waiting
        if not waiting or self._is_writing:
            return
        if self._send_nowait is not None:
            data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting.clear()
            sent = self._send_nowait(data)
            self.sent_bytes += sent
            self.waiting_bytes -= sent
            if sent == len(data):
                return
            waiting.append(data[sent:])
        self._is_writing = True
        self._start(self._write)

    async def wait_for_room(self) -> None:
        """Return when it `has_room`, or the connection is broken."""
        while not self.has_room and not self._is_broken:
            await self._progress.park()

    async def drained(self) -> None:
        """Return when nothing waits, or the connection is broken."""
        while self._is_writing and not self._is_broken:
            await self._progress.park()

    def abandon(self) -> None:
        """Send nothing more: the connection is broken."""
        self._is_broken = True
        self._waiting.clear()
        self.waiting_bytes = 0
        self._progress.unpark_all()

    async def _write(self) -> None:
        try:
            while self._waiting:
                data = b"".join(self._waiting)
                self._waiting.clear()
                for start in range(0, len(data), _PIECE_BYTES):
                    piece = data[start : start + _PIECE_BYTES]
                    with trio.move_on_after(self._stalled_after_s) as patience:
                        await self._stream.send_all(piece)
                    if patience.cancelled_caught:
                        raise PeerStalledError(f"the peer took nothing for {self._stalled_after_s:g} s")
                    had_room = self.has_room
                    self.waiting_bytes -= len(piece)
                    self.sent_bytes += len(piece)
                    if self.has_room and not had_room:
                        self._progress.unpark_all()
                        self._on_room()
            self._is_writing = False
            self._progress.unpark_all()
            self._on_room()
        except BaseException:
            self.abandon()
            raise
