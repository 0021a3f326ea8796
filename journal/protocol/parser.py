"""Splits a byte stream into frames. No sockets, and bodies are not decoded; layouts are in `journal.protocol.frames`.

Invariant (tested with random bytes): any byte stream gives frames and then possibly one `RemoteProtocolError`, and the
result is the same whether the stream arrives at once or byte by byte. At most one unfinished frame is buffered, and no
memory is allocated for a frame longer than the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from journal.protocol.errors import RemoteProtocolError
from journal.protocol.frames import HEADER

# A frame that still misses at least this many bytes is received directly into its own buffer.
DIRECT_MIN_BYTES: Final = 64 * 1024


class Frame(NamedTuple):
    """One frame; ``body`` is the part after the header and may be kept.

    Attributes:
        op: Operation number; unknown numbers are passed on, not refused.
        status: 0, or an error number in an error reply.
        correlation: Links a reply to its request; 0 in frames that a server sends without a request.
    """

    op: int
    status: int
    correlation: int
    body: bytes | memoryview


class FrameParser:
    """Push parser: `feed` bytes, then iterate over the frames they completed.

    A large frame can be received without a copy: if `missing` returns a buffer, receive into it and call `filled`.

    Args:
        max_frame_bytes: Longest frame to accept, header included. May be raised later by setting the attribute.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._head = b""
        self._frame: bytearray | None = None
        self._have = 0
        self._frames: deque[Frame] = deque()
        self._error: RemoteProtocolError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no unfinished frame is buffered: the peer may close the stream here."""
        return not self._head and self._frame is None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Process the next bytes of the stream. They are copied: the caller may reuse its buffer at once.

        Bytes after a framing error are ignored; iterating raises the error.
        """
        if self._error is not None:
            return
        view = memoryview(data)
        at = 0
        if self._frame is not None:
            at = self._fill(view)
        elif self._head:
            taken = HEADER.size - len(self._head)
            self._head += bytes(view[:taken])
            if len(self._head) < HEADER.size:
                return
            at = taken
            head, self._head = self._head, b""
            if not self._begin(head, 0):
                return
            at += self._fill(view[at:])
        if self._frame is None:
            self._cut(view, at)

    def missing(self) -> memoryview | None:
        """The unfilled rest of a large unfinished frame, to receive into; None if `feed` is to be used."""
        if self._frame is None or len(self._frame) - self._have < DIRECT_MIN_BYTES:
            return None
        return memoryview(self._frame)[self._have :]

    def filled(self, size_bytes: int) -> None:
        """Note that ``size_bytes`` were received into the buffer from `missing`."""
        self._have += size_bytes
        self._finish()

    def __iter__(self) -> Iterator[Frame]:
        """Return the finished frames, in order.

        Raises:
            RemoteProtocolError: The stream broke the framing rules; the connection cannot be used any more.
        """
        frames = self._frames
        while frames:
            yield frames.popleft()
        if self._error is not None:
            raise self._error

    def _cut(self, view: memoryview, at: int) -> None:
        """Split off all complete frames of the chunk (the hot loop); keep the beginning of an incomplete one."""
        unpack = HEADER.unpack_from
        header_bytes = HEADER.size
        limit = self.max_frame_bytes
        add = self._frames.append
        end = len(view)
        while end - at >= header_bytes:
            length, op, status, correlation = unpack(view, at)
            if length < header_bytes or length > limit:
                self._error = _bad_length(length, limit)
                return
            if end - at < length:
                self._begin(view, at)
                self._fill(view[at + header_bytes :])
                return
            add(Frame(op, status, correlation, bytes(view[at + header_bytes : at + length])))
            at += length
        self._head = bytes(view[at:])

    def _begin(self, buffer: bytes | memoryview, at: int) -> bool:
        length = HEADER.unpack_from(buffer, at)[0]
        if length < HEADER.size or length > self.max_frame_bytes:
            self._error = _bad_length(length, self.max_frame_bytes)
            return False
        self._frame = bytearray(length)
        self._frame[: HEADER.size] = buffer[at : at + HEADER.size]
        self._have = HEADER.size
        self._finish()
        return True

    def _fill(self, view: memoryview) -> int:
        """Move bytes into the unfinished frame; returns their number."""
        frame = self._frame
        if frame is None:
            return 0
        taken = min(len(frame) - self._have, len(view))
        frame[self._have : self._have + taken] = view[:taken]
        self._have += taken
        self._finish()
        return taken

    def _finish(self) -> None:
        frame = self._frame
        if frame is not None and self._have == len(frame):
            _, op, status, correlation = HEADER.unpack_from(frame)
            self._frames.append(Frame(op, status, correlation, memoryview(frame)[HEADER.size :]))
            self._frame = None


def _bad_length(length: int, limit: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"frame length {length} is impossible: a frame has from {HEADER.size} to {limit} bytes; "
        f"the peer uses another protocol or ignores the limit in the HELLO reply"
    )
