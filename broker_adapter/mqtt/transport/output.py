"""Output of MQTT connections: how streams carry it, and packets that wait for a save of the session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

import trio

from broker_adapter.mqtt.model.statistics import BrokerStatistics
from journal.net.output import Output
from shards.segments.chunks import Readable

_PIECE_BYTES: Final = 64 * 1024


@runtime_checkable
class SendsNow(Protocol):
    """A stream that can send without waiting."""

    def send_nowait(self, data: Readable) -> int:
        """Send what the stream accepts at once; returns the number of bytes."""


class StreamCarrier:
    """A `journal.net.output.Carrier` over a stream, which may encrypt or frame the bytes.

    Args:
        stream: Where bytes are sent.
        statistics: Where sent bytes are counted.
    """

    __slots__ = ("_sends_now", "_statistics", "_stream")

    keeps_frames_whole = False

    def __init__(self, stream: trio.abc.SendStream, statistics: BrokerStatistics) -> None:
        self._stream = stream
        self._statistics = statistics
        self._sends_now: SendsNow | None = stream if isinstance(stream, SendsNow) else None

    def send_nowait(self, buffers: list[Readable]) -> int:
        if self._sends_now is None:
            return 0
        sent = self._sends_now.send_nowait(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        self._statistics.bytes_sent += sent
        return sent

    async def send_some(self, buffers: list[Readable]) -> int:
        """Send the first bytes, few enough that a slow peer's progress is seen."""
        piece, size_bytes = [], 0
        for buffer in buffers:
            piece.append(buffer[: _PIECE_BYTES - size_bytes])
            size_bytes += len(piece[-1])
            if size_bytes == _PIECE_BYTES:
                break
        await self._stream.send_all(b"".join(piece))
        self._statistics.bytes_sent += size_bytes
        return size_bytes


class SavedFirst:
    """Packets that may be sent only after a save of the session: many of them wait for one save.

    Args:
        save: Returns when the present state of the session, or a newer one, is durable.
        output: Where the packets are sent then.
        start: Starts a task that ends with the connection.
    """

    __slots__ = ("_is_saving", "_output", "_save", "_start", "_waiting")

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
        self._output.reserve_nowait(len(data))
        if not self._is_saving:
            self._is_saving = True
            self._start(self._run)

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await self._save()
            for data in waiting:
                self._output.unreserve(len(data))
                self._output.collect(data)
            self._output.flush()
        self._is_saving = False
