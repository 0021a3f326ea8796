"""Heartbeat of a WebSocket: regular pings, and the end of a connection whose peer does not answer them.

A browser whose machine is lost does not close its connection. TCP has keepalive probes for that, but a proxy in between
answers them for its lost client, and drops connections without traffic.
"""

from __future__ import annotations

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

INTERVAL_S = 20.0
PATIENCE_S = 60.0


class Heartbeat:
    """The heartbeat of one connection; its messages are received through it."""

    def __init__(self, websocket: WebSocketConnection) -> None:
        self._websocket = websocket
        self._listening_since: float | None = None

    async def get_message(self) -> str | bytes:
        """Return the next message.

        Raises:
            ConnectionClosed: The peer closed.
        """
        self._listening_since = trio.current_time()
        try:
            return await self._websocket.get_message()
        finally:
            self._listening_since = None

    async def wait_silent(self) -> None:
        """Send pings; return when the peer has been silent for too long, but never if it closes the connection."""
        while True:
            await trio.sleep(INTERVAL_S)
            async with trio.open_nursery() as nursery:
                answered = trio.Event()
                # Not cancelled when it takes long: a partly sent ping would corrupt what is sent after it.
                nursery.start_soon(self._ping, answered)
                while not answered.is_set():
                    with trio.move_on_after(PATIENCE_S):
                        await answered.wait()
                    if not answered.is_set() and self._is_silent():
                        nursery.cancel_scope.cancel()
                        return

    async def _ping(self, answered: trio.Event) -> None:
        try:
            await self._websocket.ping()
        except ConnectionClosed:
            await trio.sleep_forever()
        answered.set()

    def _is_silent(self) -> bool:
        # While the server does not receive, pongs are unread behind messages, so silence means nothing.
        since = self._listening_since
        return since is not None and trio.current_time() - since >= PATIENCE_S
