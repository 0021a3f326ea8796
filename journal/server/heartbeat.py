"""Signs of life over a WebSocket: a ping now and then, and an end to a connection whose peer answers none.

A browser that went away together with its machine says no goodbye. TCP has probes of its own for that, but a proxy in
between answers them for a peer that is gone, and forgets connections over which nothing goes.
"""

from __future__ import annotations

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

INTERVAL_S = 20.0
PATIENCE_S = 60.0


class Heartbeat:
    """The heartbeat of one connection, through which its messages are received."""

    def __init__(self, websocket: WebSocketConnection) -> None:
        self._websocket = websocket
        self._listening_since: float | None = None

    async def get_message(self) -> str | bytes:
        """The next message.

        Raises:
            ConnectionClosed: The peer closed.
        """
        self._listening_since = trio.current_time()
        try:
            return await self._websocket.get_message()
        finally:
            self._listening_since = None

    async def wait_silent(self) -> None:
        """Ping, and return once the peer has been silent for too long; never, if it closes the connection."""
        while True:
            await trio.sleep(INTERVAL_S)
            async with trio.open_nursery() as nursery:
                answered = trio.Event()
                # Not cancelled when it takes long: a ping that is cut off would spoil what is sent behind it.
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
        # While nobody listens, pongs lie unread behind messages, and the peer's silence says nothing.
        since = self._listening_since
        return since is not None and trio.current_time() - since >= PATIENCE_S
