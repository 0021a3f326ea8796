"""A WebSocket on an accepted stream, from its handshake to its end. Its messages are handled elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest

from journal.net.websocket_limits import LimitedWebSocketConnection

_RECEIVE_BYTES = 64 * 1024
_CLOSING_S = 0.5
_BAD_REQUEST = 400
_FORBIDDEN = 403


@asynccontextmanager
async def open_websocket(
    stream: trio.abc.Stream,
    *,
    max_message_bytes: int,
    handshake_timeout_s: float,
    subprotocol: str | None = None,
    choices: Collection[str] = (),
    allows_origin: Callable[[str | None], bool] = lambda _: True,
) -> AsyncIterator[LimitedWebSocketConnection]:
    """Open a WebSocket as the server, and close it in order at the end.

    Args:
        stream: An accepted stream; it is closed, too.
        max_message_bytes: A longer message ends the connection, until `allow` raises the limit.
        handshake_timeout_s: The peer must have sent the handshake within this time.
        subprotocol: The sub-protocol that the peer must offer; None for any.
        choices: With None, the first of these that the peer offers is chosen; if it offers none of them, none is.
        allows_origin: Whether a page of this origin may open it; called with None for programs that are not browsers.

    Raises:
        OSError: The peer disconnected, or sent no acceptable handshake in time.
    """
    failure: Exception | None = None
    async with stream, trio.open_nursery() as nursery:
        try:
            with trio.fail_after(handshake_timeout_s):
                connection = LimitedWebSocketConnection(
                    stream, _peer_of(stream), max_message_bytes=max_message_bytes, receive_bytes=_RECEIVE_BYTES
                )
                request = await connection.open(nursery)
                await _accept(request, subprotocol, choices, allows_origin)
            yield connection
            with trio.move_on_after(_CLOSING_S):
                await connection.aclose()
        except (ConnectionClosed, trio.TooSlowError):
            failure = BrokenPipeError("the WebSocket was not opened")
        except Exception as error:  # noqa: BLE001 it is raised outside of the nursery, which would wrap it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _accept(
    request: WebSocketRequest,
    subprotocol: str | None,
    choices: Collection[str],
    allows_origin: Callable[[str | None], bool],
) -> None:
    origin = next((value.decode("latin-1") for name, value in request.headers if name.lower() == b"origin"), None)
    if not allows_origin(origin):
        await request.reject(_FORBIDDEN, body=f"pages of {origin} may not connect\n".encode())
        raise BrokenPipeError(f"the WebSocket was requested by a page of {origin}")
    if subprotocol is not None and subprotocol not in request.proposed_subprotocols:
        await request.reject(_BAD_REQUEST, body=f"offer the sub-protocol {subprotocol}\n".encode())
        raise BrokenPipeError(f"the WebSocket was offered without the sub-protocol {subprotocol}")
    if subprotocol is None:
        subprotocol = next((offer for offer in request.proposed_subprotocols if offer in choices), None)
    await request.accept(subprotocol=subprotocol)


def _peer_of(stream: trio.abc.Stream) -> str:
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream):
        return ""
    address = stream.socket.getpeername()
    return f"{address[0]}:{address[1]}"
