"""The same frames as binary WebSocket messages, each of one or more whole frames."""

from __future__ import annotations

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from journal.protocol.errors import RemoteProtocolError, encode_error
from journal.server.connection import Connection
from journal.server.receive_buffers import ReceiveBuffer
from shards.chunks import Readable


class WebSocketCarrier:
    """Sends what waits as one binary message at a time."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection

    def send_nowait(self, buffers: list[Readable]) -> int:
        """Nothing goes at once: a message needs the writer task."""
        return 0

    async def send_some(self, buffers: list[Readable]) -> int:
        """Send all of the buffers as one message."""
        message = b"".join(buffers)
        try:
            await self._connection.send_message(message)
        except ConnectionClosed as error:
            raise BrokenPipeError("the WebSocket is closed") from error
        return len(message)


async def receive_messages(connection: Connection, websocket: WebSocketConnection, hello_timeout_s: float) -> None:
    """Receive messages until the peer closes or breaks the rules.

    Raises:
        RemoteProtocolError: A text message, or one that does not end with a whole frame.
    """
    with trio.move_on_after(hello_timeout_s) as greeting:
        while True:
            await connection.wait_for_room()
            try:
                message = await websocket.get_message()
            except ConnectionClosed:
                return
            try:
                _take(connection, message)
            except RemoteProtocolError as error:
                connection.reply(encode_error(0, 0, error))
                raise
            if connection.greeted:
                greeting.deadline = float("inf")
    raise RemoteProtocolError(f"no HELLO within {hello_timeout_s:.0f} s")


def _take(connection: Connection, message: bytes | str) -> None:
    if isinstance(message, str):
        raise RemoteProtocolError("a text message; this endpoint speaks binary frames")
    buffer = ReceiveBuffer(None, len(message))
    buffer.view[: len(message)] = message
    if connection.take_frames(buffer, 0, len(message)) != len(message):
        raise RemoteProtocolError(f"a message of {len(message)} bytes does not end with a whole frame")
