"""Output of one connection: bytes in order, with a limit that senders check.

Bytes are collected and sent together by `flush`, at once if the stream accepts them. A writer task runs only while
bytes wait for the peer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

import trio

from broker_adapter.mqtt.model.statistics import BrokerStatistics

_PIECE_BYTES: Final = 64 * 1024


@runtime_checkable
class SendsNow(Protocol):
    """A stream that can send without waiting."""

    def send_nowait(self, data: bytes) -> int:
        """Send what the stream accepts at once; returns the number of bytes."""


class Output:
    """The outgoing side of a connection, a buffer with a limit.

    Args:
        stream: Where bytes are sent.
        start: Starts a task that ends with the connection.
        limit_bytes: Limit of `has_room`. It is not enforced here; senders check `has_room`.
        stalled_after_s: The connection is given up if the peer accepts no bytes for this long.
        on_room: Called when there is room again.
        on_broken: Called when nothing can be sent any more; waiting bytes are lost.
        statistics: Where sent bytes are counted.

    Attributes:
        waiting_bytes: Bytes that wait to be sent.
        has_stalled: The peer accepted no bytes for too long, and the connection was given up.
    """

    def __init__(
        self,
        stream: trio.abc.SendStream,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        *,
        limit_bytes: int,
        stalled_after_s: float,
        on_room: Callable[[], None],
        on_broken: Callable[[], None],
        statistics: BrokerStatistics,
    ) -> None:
        self._stream = stream
        self._start = start
        self._limit_bytes = limit_bytes
        self._stalled_after_s = stalled_after_s
        self._on_room = on_room
        self._on_broken = on_broken
        self._statistics = statistics
        self._send_nowait = stream.send_nowait if isinstance(stream, SendsNow) else None
        self._waiting: list[bytes] = []
        self._is_writing = False
        self._is_broken = False
        self._is_telling = False
        self._progress = trio.lowlevel.ParkingLot()
        self.waiting_bytes = 0
        self.has_stalled = False

    @property
    def has_room(self) -> bool:
        """Whether fewer bytes wait than the limit."""
        return self.waiting_bytes < self._limit_bytes

    def send(self, data: bytes) -> None:
        """Append whole packets to the buffer; the next `flush` sends them."""
        if self._is_broken:
            return
        self._waiting.append(data)
        self.waiting_bytes += len(data)

    def reserve(self, size_bytes: int) -> None:
        """Count bytes as waiting that will be sent later; undo it with the same number negated."""
        had_room = self.has_room
        self.waiting_bytes += size_bytes
        self._look_for_room(had_room)

    def flush(self) -> None:
        """Send the buffer. Never blocks; `on_broken` is called if the connection is gone."""
        waiting = self._waiting
        if not waiting or self._is_writing:
            return
        if self._send_nowait is not None:
            data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting.clear()
            had_room = self.has_room
            try:
                sent = self._send_nowait(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.abandon()
                return
            self._count(sent)
            self._look_for_room(had_room)
            if sent == len(data):
                return
            waiting.append(data[sent:])
        self._is_writing = True
        self._start(self._write)

    async def wait_for_room(self) -> None:
        """Return when `has_room` is true, or the connection is broken."""
        while not self.has_room and not self._is_broken:
            await self._progress.park()

    async def drained(self) -> None:
        """Return when nothing waits, or the connection is broken."""
        while self._is_writing and not self._is_broken:
            await self._progress.park()

    def abandon(self) -> None:
        """Send nothing more: the connection is broken."""
        if self._is_broken:
            return
        self._is_broken = True
        self._waiting.clear()
        self._progress.unpark_all()
        self._on_broken()

    async def _write(self) -> None:
        try:
            while self._waiting:
                data = b"".join(self._waiting)
                self._waiting.clear()
                for start in range(0, len(data), _PIECE_BYTES):
                    if not await self._write_piece(data[start : start + _PIECE_BYTES]):
                        return
            self._is_writing = False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.abandon()
        finally:
            if self._is_writing:
                # Cut off in the middle of a packet: the peer could not decode anything after it.
                self.abandon()
        if not self._is_broken:
            self._progress.unpark_all()
            self._on_room()

    async def _write_piece(self, piece: bytes) -> bool:
        """Write a piece; false if the peer accepts nothing any more."""
        had_room = self.has_room
        with trio.move_on_after(self._stalled_after_s) as patience:
            await self._stream.send_all(piece)
        if patience.cancelled_caught:
            self.has_stalled = True
            return False
        self._count(len(piece))
        if self.has_room and not had_room:
            self._progress.unpark_all()
            self._on_room()
        return True

    def _look_for_room(self, had_room: bool) -> None:
        """Wake those that wait for room, if there was none and now there is.

        `on_room` is called by a task: it sends more, and would call this again for each part of a long queue.
        """
        if not had_room and self.has_room and not self._is_broken:
            self._progress.unpark_all()
            if not self._is_telling:
                self._is_telling = True
                self._start(self._tell_of_room)

    async def _tell_of_room(self) -> None:
        await trio.lowlevel.checkpoint()
        self._is_telling = False
        if self.has_room and not self._is_broken:
            self._on_room()

    def _count(self, sent_bytes: int) -> None:
        self.waiting_bytes -= sent_bytes
        self._statistics.bytes_sent += sent_bytes


class SavedFirst:
    """Packets that may be sent only after a save of the session: many of them wait for one save.

    Args:
        save: Returns when the present state of the session, or a newer one, is durable.
        output: Where the packets are sent then.
        start: Starts a task that ends with the connection.
    """

    def __init__(
        self,
        save: Callable[[], Awaitable[None]],
        output: Output,
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._save = save
        self._output = output
        self._start = start
        self._waiting: list[bytes] = []
        self._is_saving = False

    def send(self, data: bytes) -> None:
        """Send a packet after the next save."""
        self._waiting.append(data)
        self._output.reserve(len(data))
        if not self._is_saving:
            self._is_saving = True
            self._start(self._run)

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await self._save()
            for data in waiting:
                self._output.reserve(-len(data))
                self._output.send(data)
            self._output.flush()
        self._is_saving = False
