"""What goes out on one connection: frames in order, one writer, a bound on what may wait.

A frame is sent at once, from whatever called, when nothing waits and the socket takes it; that saves a task switch for
every acknowledgement and push. Otherwise the connection's writer task goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import trio

from shards.segments.chunks import Readable

_BUFFERS_AT_ONCE = 256
_STALLED_AFTER_S = 60.0

Frame: TypeAlias = Sequence[Readable]


class PeerStalledError(Exception):
    """The peer took nothing for so long that it counts as gone."""


class Carrier(Protocol):
    """Moves bytes of whole frames to the peer.

    Attributes:
        keeps_frames_whole: A frame must not be divided over two calls of `send_some`.
    """

    keeps_frames_whole: bool

    def send_nowait(self, buffers: list[Readable]) -> int:
        """Send what goes at once; gives the number of bytes."""

    async def send_some(self, buffers: list[Readable]) -> int:
        """Wait until something goes; gives the number of bytes.

        Raises:
            OSError: The connection is broken.
        """


class Sendable(Protocol):
    """A non-blocking socket, encrypted or not."""

    def fileno(self) -> int: ...

    def sendmsg(self, buffers: Sequence[Readable], /) -> int: ...


class TcpCarrier:
    """A non-blocking TCP socket."""

    keeps_frames_whole = False

    def __init__(self, sock: Sendable) -> None:
        self._socket = sock

    def send_nowait(self, buffers: list[Readable]) -> int:
        try:
            return self._socket.sendmsg(buffers[:_BUFFERS_AT_ONCE])
        except BlockingIOError:
            return 0

    async def send_some(self, buffers: list[Readable]) -> int:
        while True:
            sent = self.send_nowait(buffers)
            if sent:
                await trio.lowlevel.checkpoint()
                return sent
            await trio.lowlevel.wait_writable(self._socket)


class Output:
    """The outgoing side of a connection.

    Attributes:
        waiting_bytes: Bytes that wait to be sent.
        sent_bytes: Bytes sent so far.
    """

    def __init__(self, carrier: Carrier, limit_bytes: int) -> None:
        self._carrier = carrier
        self._limit_bytes = limit_bytes
        self._queue: deque[Readable] = deque()
        self._wake = trio.Event()
        self._drained = trio.lowlevel.ParkingLot()
        self._broken = False
        self._reserved_bytes = 0
        self._stalled_after_s = _STALLED_AFTER_S
        self.waiting_bytes = 0
        self.sent_bytes = 0

    def expect_progress(self, within_s: float) -> None:
        """Give the peer up sooner that takes nothing, where each piece that it takes is seen."""
        if not self._carrier.keeps_frames_whole:
            self._stalled_after_s = min(self._stalled_after_s, within_s)

    def send(self, frame: Frame, size_bytes: int) -> None:
        """Send one or more whole frames, or queue them. Never blocks; the sender minds `has_room`."""
        if self._broken:
            return
        rest = list(frame)
        if not self._queue:
            try:
                sent = self._carrier.send_nowait(rest)
            except OSError:
                self.abandon()
                return
            self.sent_bytes += sent
            if sent == size_bytes:
                return
            size_bytes -= sent
            rest = without_first(rest, sent)
        if self._carrier.keeps_frames_whole:
            rest = [b"".join(rest)]
        self._queue.extend(rest)
        self.waiting_bytes += size_bytes
        self._wake.set()

    @property
    def has_room(self) -> bool:
        """Whether less waits, or is being read in order to wait here, than may wait; what is broken takes anything."""
        return self._broken or self.waiting_bytes + self._reserved_bytes < self._limit_bytes

    async def reserve(self, size_bytes: int) -> None:
        """Wait for room and take it for a reply of about this size that is still to be read; see `unreserve`.

        Without this, any number of reads could begin while little waits, and end all at once.
        """
        await self.wait_for_room()
        self._reserved_bytes += size_bytes

    def unreserve(self, size_bytes: int) -> None:
        """The reply was sent or will not be; what of it waits counts by itself."""
        self._reserved_bytes -= size_bytes
        if self.has_room:
            self._drained.unpark_all()

    async def wait_for_room(self) -> None:
        """Return when `has_room`, or the connection is broken."""
        while not self.has_room:
            await self._drained.park()

    async def wait_drained(self) -> None:
        """Return when nothing waits, or the connection is broken."""
        while self._queue and not self._broken:
            await self._drained.park()

    def abandon(self) -> None:
        """Send nothing more: the connection is broken."""
        self._broken = True
        self._queue.clear()
        self.waiting_bytes = 0
        self._wake.set()
        self._drained.unpark_all()

    async def run(self) -> None:
        """Send what waits, as the connection's writer, until the connection breaks.

        Raises:
            PeerStalledError: The peer takes nothing any more.
            OSError: The connection is broken.
        """
        try:
            while not self._broken:
                if not self._queue:
                    self._wake = trio.Event()
                    await self._wake.wait()
                    continue
                some = [self._queue[at] for at in range(min(len(self._queue), _BUFFERS_AT_ONCE))]
                with trio.move_on_after(self._stalled_after_s) as scope:
                    sent = await self._carrier.send_some(some)
                if scope.cancelled_caught:
                    raise PeerStalledError(
                        f"the peer took none of {self.waiting_bytes} waiting bytes for {self._stalled_after_s:g} s"
                    )
                self._take_out(sent)
        finally:
            self.abandon()

    def _take_out(self, sent: int) -> None:
        self.sent_bytes += sent
        self.waiting_bytes -= sent
        queue = self._queue
        while sent:
            size = len(queue[0])
            if sent < size:
                queue[0] = memoryview(queue[0])[sent:]
                break
            sent -= size
            queue.popleft()
        if not queue or self.has_room:
            self._drained.unpark_all()


def without_first(buffers: list[Readable], size_bytes: int) -> list[Readable]:
    """What remains of buffers behind their first bytes."""
    for at, buffer in enumerate(buffers):
        if size_bytes < len(buffer):
            return [memoryview(buffer)[size_bytes:], *buffers[at + 1 :]]
        size_bytes -= len(buffer)
    return []
