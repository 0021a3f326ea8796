"""The server's side of a WebSocket with a limit on the number of pieces of a message as well as on its bytes.

A message arrives in pieces: fragments that the peer made, and parts of them from one receive each. Each piece needs
memory besides its bytes, and an empty fragment has no bytes at all, so a limit on bytes does not bound the memory.
Compression is never negotiated: the size of a message is what was sent, and a compressed frame is a protocol error.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio
import wsproto
from trio_websocket import CloseReason, WebSocketConnection, WebSocketRequest
from wsproto.events import BytesMessage, CloseConnection, TextMessage

_FREE_PIECES = 1024
_LEAST_BYTES_A_PIECE = 256
_TOO_BIG = 1009
_TRY_AGAIN_LATER = 1013

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class LimitedWebSocketConnection(WebSocketConnection):
    """A WebSocket connection with limits; see the module.

    Args:
        stream: An accepted stream.
        peer: Address of the peer, for the log.
        max_message_bytes: A longer message ends the connection.
        receive_bytes: Size of one receive.

    Attributes:
        held_bytes: What arrived of messages that `get_message` has not returned.
        on_held: Called when `held_bytes` has changed; if it returns False, the connection is closed.
    """

    def __init__(self, stream: trio.abc.Stream, peer: str, *, max_message_bytes: int, receive_bytes: int) -> None:
        super().__init__(
            stream,
            wsproto.WSConnection(wsproto.ConnectionType.SERVER),
            max_message_size=max_message_bytes,
            receive_buffer_size=receive_bytes,
        )
        self._peer = peer
        self.held_bytes = 0
        self.on_held: Callable[[], bool] = lambda: True

    def allow(self, max_message_bytes: int) -> None:
        """Allow longer messages from now on, after the peer was authenticated."""
        self._max_message_size = max_message_bytes

    async def get_message(self) -> str | bytes:
        message = await super().get_message()
        self.held_bytes -= len(message)
        self.on_held()
        return message

    async def open(self, nursery: trio.Nursery) -> WebSocketRequest:
        """Start receiving in the nursery; returns the peer's handshake request."""
        nursery.start_soon(self._reader_task)
        return await self._get_request()

    async def _handle_message_event(self, event: BytesMessage | TextMessage) -> None:
        if not self._reader_running:
            # It was refused; this piece came with the same receive.
            return
        size = self._message_size + len(event.data)
        pieces = len(self._message_parts) + 1
        if size > self._max_message_size:
            await self._refuse(f"a message of more than {self._max_message_size} bytes, the limit")
        elif pieces > _FREE_PIECES and not event.message_finished and size < pieces * _LEAST_BYTES_A_PIECE:
            await self._refuse(
                f"a message of {pieces} pieces with {size} bytes; send fragments of at least {_LEAST_BYTES_A_PIECE}"
            )
        else:
            self.held_bytes += len(event.data)
            if self.on_held():
                await super()._handle_message_event(event)
            else:
                await self._refuse("peers that are not accepted yet occupy too much memory", _TRY_AGAIN_LATER)

    async def _refuse(self, reason: str, code: int = _TOO_BIG) -> None:
        log.warning("connection closed", peer=self._peer, reason=reason)
        self._message_size = 0
        self._message_parts = []
        self._close_reason = CloseReason(code, reason)
        self._reader_running = False
        await self._send(CloseConnection(code=code, reason=reason))
        await self._recv_channel.aclose()
