"""What is between a broker and its store: it forwards bytes, loses answers, and cuts connections without a word."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from tests.patience import PATIENCE_S

CHUNK_BYTES = 65_536


@attrs.define(eq=False)
class _Pair:
    """One connection of a broker, and the one to the store behind it."""

    broker: trio.SocketStream
    store: trio.SocketStream
    is_mute: bool = False


class Relay:
    """Forwards between brokers that connect to ``port`` and a store on loopback, in a thread of its own.

    Args:
        target_port: Of the store; it may be down, then connections are closed.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._pairs: set[_Pair] = set()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._ready = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Relay]:
        """Forward for the length of a block."""
        thread = threading.Thread(target=trio.run, args=(self._serve,))
        thread.start()
        assert self._ready.wait(PATIENCE_S)
        assert self._token is not None
        try:
            yield self
        finally:
            self._token.run_sync_soon(self._scope.cancel)
            thread.join(PATIENCE_S)

    def lose_answers(self) -> None:
        """From now on what the store says on the connections that there are does not arrive; cut them soon."""
        assert self._token is not None
        self._token.run_sync_soon(self._mute)

    def cut(self) -> None:
        """Close all connections that there are, on both sides."""
        assert self._token is not None
        self._token.run_sync_soon(self._close)

    def _mute(self) -> None:
        for pair in self._pairs:
            pair.is_mute = True

    def _close(self) -> None:
        for pair in self._pairs:
            pair.broker.socket.close()
            pair.store.socket.close()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        self._ready.set()
        with self._scope:
            await trio.serve_listeners(self._forward, listeners)

    async def _forward(self, broker: trio.SocketStream) -> None:
        async with broker:
            try:
                store = await trio.open_tcp_stream("127.0.0.1", self._target_port)
            except OSError:
                return
            pair = _Pair(broker, store)
            self._pairs.add(pair)
            try:
                async with store, trio.open_nursery() as nursery:
                    nursery.start_soon(_pump, pair, nursery.cancel_scope, False)
                    nursery.start_soon(_pump, pair, nursery.cancel_scope, True)
            finally:
                self._pairs.discard(pair)


async def _pump(pair: _Pair, scope: trio.CancelScope, is_answer: bool) -> None:
    source, sink = (pair.store, pair.broker) if is_answer else (pair.broker, pair.store)
    try:
        while data := await source.receive_some(CHUNK_BYTES):
            if not (is_answer and pair.is_mute):
                await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()
