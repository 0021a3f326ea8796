"""The outgoing side of a connection: bytes in order, a bound on those that wait, one writer.

What the peer accepts at once is sent by the caller: this saves a task switch for every acknowledgement and push.
Otherwise a writer task sends it; it runs only while bytes wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias

import trio

from shards.segments.chunks import Readable

_BUFFERS_AT_ONCE: Final = 256
_STALLED_AFTER_S: Final = 60.0
_BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

Frame: TypeAlias = Sequence[Readable]


class Carrier(Protocol):
    """Sends bytes of complete frames to the peer.

    Both methods raise `OSError`, `trio.BrokenResourceError` or `trio.ClosedResourceError` if the connection is broken.

    Attributes:
        keeps_frames_whole: A frame must not be split over two calls of `send_some`.
    """

    keeps_frames_whole: bool

    def send_nowait(self, buffers: list[Readable]) -> int:
        """Send as much as possible without waiting; returns the number of bytes."""

    async def send_some(self, buffers: list[Readable]) -> int:
        """Wait until something can be sent, and send it; returns the number of bytes."""


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

    Frames are sent by `send`, or collected by `collect` and sent together by `flush`.

    Args:
        carrier: Sends bytes.
        start: Starts a task that ends with the connection.
        limit_bytes: Limit of `has_room`. It is not enforced here; senders check `has_room`.
        stalled_after_s: The connection is given up if the peer accepts no bytes for this long.
        on_broken: Called once, when nothing can be sent any more; waiting bytes are lost.
        on_room: Called by a task when there is room again.

    A process has one for each connection, and most connections are idle: one with nothing to send holds no containers.

    Attributes:
        waiting_bytes: Bytes that wait to be sent.
        sent_bytes: Bytes sent so far.
        stalled_bytes: The peer accepted none of so many waiting bytes for too long, and the connection was given up; 0
            otherwise.
    """

    __slots__ = (
        "_carrier",
        "_collected",
        "_is_broken",
        "_is_ended",
        "_is_telling",
        "_is_writing",
        "_limit_bytes",
        "_on_broken",
        "_on_room",
        "_progress",
        "_queue",
        "_reserved_bytes",
        "_start",
        "sent_bytes",
        "stalled_after_s",
        "stalled_bytes",
        "waiting_bytes",
    )

    def __init__(
        self,
        carrier: Carrier,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        *,
        limit_bytes: int,
        stalled_after_s: float = _STALLED_AFTER_S,
        on_broken: Callable[[], None],
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self._carrier = carrier
        self._start = start
        self._limit_bytes = limit_bytes
        self._on_broken = on_broken
        self._on_room = on_room
        self._queue: deque[Readable] | None = None  # not empty; `_enqueue` makes it
        self._collected: list[Readable] = []
        self._reserved_bytes = 0
        self._is_writing = False
        self._is_telling = False
        self._is_broken = False
        self._is_ended = False
        self._progress: trio.lowlevel.ParkingLot | None = None  # made for the first task that waits
        self.stalled_after_s = stalled_after_s
        self.waiting_bytes = 0
        self.sent_bytes = 0
        self.stalled_bytes = 0

    def expect_progress(self, within_s: float) -> None:
        """Use a shorter time limit for a peer that reads nothing, if the carrier reports each piece that is sent."""
        if not self._carrier.keeps_frames_whole:
            self.stalled_after_s = min(self.stalled_after_s, within_s)

    # Sending

    def send(self, frame: Frame, size_bytes: int) -> None:
        """Send one or more complete frames, or queue them. Never blocks; the caller has to check `has_room`."""
        if self._is_broken or self._is_ended:
            return
        rest = list(frame)
        if not self._queue:
            try:
                sent = self._carrier.send_nowait(rest)
            except _BROKEN:
                self.abandon()
                return
            self.sent_bytes += sent
            if sent == size_bytes:
                return
            size_bytes -= sent
            rest = without_first(rest, sent)
        self.waiting_bytes += size_bytes
        self._enqueue(rest)

    def collect(self, frame: bytes) -> None:
        """Keep a complete frame for the next `flush`."""
        if not (self._is_broken or self._is_ended):
            self._collected.append(frame)
            self.waiting_bytes += len(frame)

    def flush(self) -> None:
        """Send what was collected, or queue it. Never blocks."""
        frames = self._collected
        if not frames:
            return
        if self._queue:
            self._collected = []
            self._enqueue(frames)
            return
        # Nothing else waits.
        size_bytes = self.waiting_bytes
        try:
            sent = self._carrier.send_nowait(frames)
        except _BROKEN:
            self.abandon()
            return
        self.sent_bytes += sent
        self.waiting_bytes = size_bytes - sent
        self._collected = []
        if sent < size_bytes:
            self._enqueue(without_first(frames, sent))
        if size_bytes + self._reserved_bytes >= self._limit_bytes:
            self._look_for_room()

    def end(self, last: bytes) -> None:
        """Send what was collected and the last bytes, or queue them. Whatever comes later is not sent."""
        if last:
            self.collect(last)
        self.flush()
        self._is_ended = True

    def _enqueue(self, frames: list[Readable]) -> None:
        if self._queue is None:
            self._queue = deque()
        self._queue.extend([b"".join(frames)] if self._carrier.keeps_frames_whole else frames)
        if not self._is_writing:
            self._is_writing = True
            self._start(self._write)

    # Room

    @property
    def has_room(self) -> bool:
        """Whether waiting and reserved bytes are below the limit; always true after the connection broke."""
        return self._is_broken or self.waiting_bytes + self._reserved_bytes < self._limit_bytes

    def reserve_nowait(self, size_bytes: int) -> None:
        """Count bytes that will be sent later as if they waited; see `unreserve`."""
        self._reserved_bytes += size_bytes

    async def reserve(self, size_bytes: int) -> None:
        """Wait for room and reserve it for a reply of about this size that will be read from a shard; see `unreserve`.

        Without this, many reads could begin while little waits, and all replies would be queued at once.
        """
        await self.wait_for_room()
        self._reserved_bytes += size_bytes

    def unreserve(self, size_bytes: int) -> None:
        """Release a reservation: the reply was queued, which counts by itself, or there is none."""
        had_room = self.has_room
        self._reserved_bytes -= size_bytes
        if not had_room:
            self._look_for_room()

    async def wait_for_room(self) -> None:
        """Return when `has_room`, or the connection has broken."""
        while not self.has_room:
            await self._wait_for_progress()

    async def wait_drained(self) -> None:
        """Return when nothing waits, or the connection has broken."""
        while self._queue and not self._is_broken:
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        if self._progress is None:
            self._progress = trio.lowlevel.ParkingLot()
        await self._progress.park()

    def _wake_waiting(self) -> None:
        if self._progress is not None:
            self._progress.unpark_all()

    def _look_for_room(self) -> None:
        """Wake those that wait for room, if there is now.

        `on_room` is called by a task: it sends more, and would call this again for each part of a long queue.
        """
        if self.has_room and not self._is_broken:
            self._wake_waiting()
            if self._on_room is not None and not self._is_telling:
                self._is_telling = True
                self._start(self._tell_of_room)

    async def _tell_of_room(self) -> None:
        await trio.lowlevel.checkpoint()
        self._is_telling = False
        if self._on_room is not None and self.has_room and not self._is_broken:
            self._on_room()

    # The writer

    def abandon(self) -> None:
        """Send nothing more: the connection has broken."""
        if self._is_broken:
            return
        self._is_broken = True
        self._queue = None
        self._collected = []
        self.waiting_bytes = 0
        self._wake_waiting()
        self._on_broken()

    async def _write(self) -> None:
        try:
            while queue := self._queue:
                some = [queue[at] for at in range(min(len(queue), _BUFFERS_AT_ONCE))]
                with trio.move_on_after(self.stalled_after_s) as waiting:
                    sent = await self._carrier.send_some(some)
                if waiting.cancelled_caught:
                    self.stalled_bytes = self.waiting_bytes
                    break
                if not self._is_broken:
                    self._take_out(sent)
        except _BROKEN:
            pass
        finally:
            self._is_writing = False
            if self._queue:
                # Stalled, broken, or cut off in the middle of a frame: the peer could not decode anything after it.
                self.abandon()

    def _take_out(self, sent: int) -> None:
        had_room = self.has_room
        self.sent_bytes += sent
        self.waiting_bytes -= sent
        queue = self._queue
        assert queue is not None  # the writer sent a part of it
        while sent:
            size = len(queue[0])
            if sent < size:
                queue[0] = memoryview(queue[0])[sent:]
                break
            sent -= size
            queue.popleft()
        if not queue:
            self._queue = None
        if not queue or (self.has_room and not had_room):
            self._wake_waiting()
            if self._on_room is not None:
                self._on_room()


def without_first(buffers: list[Readable], size_bytes: int) -> list[Readable]:
    """The rest of buffers after their first ``size_bytes``."""
    for at, buffer in enumerate(buffers):
        if size_bytes < len(buffer):
            return [memoryview(buffer)[size_bytes:], *buffers[at + 1 :]]
        size_bytes -= len(buffer)
    return []
