"""The outgoing side of a connection: frames in order, one writer, a bound on the bytes that wait.

If nothing waits and the socket accepts it, a frame is sent at once by the caller: this saves a task switch for every
acknowledgement and push. Otherwise the connection's writer task sends it.
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
    """The peer read nothing for so long that it is treated as gone."""


class Carrier(Protocol):
    """Sends bytes of complete frames to the peer.

    Attributes:
        keeps_frames_whole: A frame must not be split over two calls of `send_some`.
    """

    keeps_frames_whole: bool

    def send_nowait(self, buffers: list[Readable]) -> int:
        """Send as much as possible without waiting; returns the number of bytes."""

    async def send_some(self, buffers: list[Readable]) -> int:
        """Wait until something can be sent, and send it; returns the number of bytes.

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
        """Use a shorter time limit for a peer that reads nothing, if the carrier reports each piece that is sent."""
        if not self._carrier.keeps_frames_whole:
            self._stalled_after_s = min(self._stalled_after_s, within_s)

    def send(self, frame: Frame, size_bytes: int) -> None:
        """Send one or more complete frames, or queue them. Never blocks; the caller has to check `has_room`."""
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
        """Whether waiting and reserved bytes are below the limit; always true after the connection broke."""
        return self._broken or self.waiting_bytes + self._reserved_bytes < self._limit_bytes

    async def reserve(self, size_bytes: int) -> None:
        """Wait for room and reserve it for a reply of about this size that will be read from a shard; see `unreserve`.

        Without this, many reads could begin while little waits, and all replies would be queued at once.
        """
        await self.wait_for_room()
        self._reserved_bytes += size_bytes

    def unreserve(self, size_bytes: int) -> None:
        """Release a reservation: the reply was queued, which counts by itself, or there is none."""
        self._reserved_bytes -= size_bytes
        if self.has_room:
            self._drained.unpark_all()

    async def wait_for_room(self) -> None:
        """Return when `has_room`, or the connection has broken."""
        while not self.has_room:
            await self._drained.park()

    async def wait_drained(self) -> None:
        """Return when nothing waits, or the connection has broken."""
        while self._queue and not self._broken:
            await self._drained.park()

    def abandon(self) -> None:
        """Send nothing more: the connection has broken."""
        self._broken = True
        self._queue.clear()
        self.waiting_bytes = 0
        self._wake.set()
        self._drained.unpark_all()

    async def run(self) -> None:
        """Send waiting bytes, as the connection's writer task, until the connection breaks.

        Raises:
            PeerStalledError: The peer reads nothing any more.
            OSError: The connection has broken.
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
                        f"the peer read none of {self.waiting_bytes} waiting bytes for {self._stalled_after_s:g} s"
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
    """The rest of buffers after their first ``size_bytes``."""
    for at, buffer in enumerate(buffers):
        if size_bytes < len(buffer):
            return [memoryview(buffer)[size_bytes:], *buffers[at + 1 :]]
        size_bytes -= len(buffer)
    return []
