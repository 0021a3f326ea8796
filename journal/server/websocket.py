"""The native protocol as binary WebSocket messages, each of one or more complete frames."""

from __future__ import annotations

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from journal.protocol.errors import RemoteProtocolError
from journal.server.connection import Connection
from journal.server.heartbeat import Heartbeat
from journal.server.receive_buffers import ReceiveBuffer
from shards.segments.chunks import Readable


class WebSocketCarrier:
    """Sends all waiting frames as one binary message."""

    keeps_frames_whole = True

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection

    def send_nowait(self, buffers: list[Readable]) -> int:
        """Return 0: a message has to be sent by the writer task."""
        return 0

    async def send_some(self, buffers: list[Readable]) -> int:
        """Send all of the buffers as one message."""
        message = b"".join(buffers)
        try:
            await self._connection.send_message(message)
        except ConnectionClosed as error:
            raise BrokenPipeError("the WebSocket is closed") from error
        return len(message)


async def receive_messages(connection: Connection, heartbeat: Heartbeat, hello_timeout_s: float) -> None:
    """Receive messages until the peer closes or breaks the rules.

    Raises:
        RemoteProtocolError: A text message, or one that does not end with a complete frame.
    """
    with trio.move_on_after(hello_timeout_s) as greeting:
        while True:
            await connection.wait_for_room()
            connection.silence.since_s = trio.current_time()
            try:
                message = await heartbeat.get_message()
            except ConnectionClosed:
                return
            connection.silence.since_s = None
            await _take(connection, message)
            if connection.greeted or connection.is_greeting:
                greeting.deadline = float("inf")
    raise RemoteProtocolError(f"no HELLO within {hello_timeout_s:.0f} s")


async def _take(connection: Connection, message: bytes | str) -> None:
    if isinstance(message, str):
        raise RemoteProtocolError("a text message; this endpoint uses binary frames")
    buffer = ReceiveBuffer(None, len(message))
    buffer.view[: len(message)] = message
    taken = connection.take_frames(buffer, 0, len(message))
    while connection.is_paused:
        await trio.lowlevel.checkpoint()
        await connection.wait_for_room()
        taken = connection.take_frames(buffer, taken, len(message))
    if taken != len(message):
        raise RemoteProtocolError(f"a message of {len(message)} bytes does not end with a complete frame")
