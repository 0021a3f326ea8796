"""A TCP proxy on loopback that does to a sink's connections what networks do: cut, refuse, hang, slow down.

It stands before a real server, on a port that stays the same. What the bytes mean it does not know.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from tests.ports import free_port

_HOST = "127.0.0.1"
_CHUNK_BYTES = 16 * 1024
_RESET = struct.pack("ii", 1, 0)
_BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Proxy:
    """One server's proxy; `open_proxy` makes one. It passes everything until it is changed.

    Attributes:
        port: Where it listens.
        to_server_bytes: How much it has passed to the server.
        to_client_bytes: How much it has passed back.
        connection_count: How many connections it has accepted.
    """

    def __init__(self, target_port: int, tasks: trio.Nursery) -> None:
        self.port = free_port()
        self.to_server_bytes = 0
        self.to_client_bytes = 0
        self.connection_count = 0
        self._target_port = target_port
        self._tasks = tasks
        self._listening: trio.CancelScope | None = None
        self._open: set[trio.SocketStream] = set()
        self._changed = trio.Event()
        self._holds_requests = False
        self._holds_replies = False
        self._pause_s = 0.0
        self._cut_at_bytes: int | None = None

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    async def listen(self) -> None:
        """Accept connections, again after `refuse`."""
        if self._listening is None:
            listeners = await trio.open_tcp_listeners(self.port, host=_HOST)
            self._listening = await self._tasks.start(self._serve, listeners)

    def refuse(self) -> None:
        """Accept no connections from now on, and cut those that there are."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self.cut()

    def hang(self) -> None:
        """Accept connections, and pass nothing on."""
        self._set(holds_requests=True, holds_replies=True)

    def hold_replies(self) -> None:
        """Pass what clients say, and nothing that the server answers."""
        self._set(holds_replies=True)

    def slow_down(self, pause_s: float) -> None:
        """Rest for so long before each 16 KiB that go to the server."""
        self._set(pause_s=pause_s)

    def pass_all(self) -> None:
        """End everything that `hang`, `hold_replies`, `slow_down` and `cut_after` began."""
        self._cut_at_bytes = None
        self._set()

    def cut(self) -> None:
        """Reset all connections, now; new ones are accepted."""
        for stream in self._open:
            with suppress(*_BROKEN):
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            stream.socket.close()
        self._open.clear()

    def cut_after(self, count_bytes: int) -> None:
        """Reset all connections once, when so many more bytes have gone to the server."""
        self._cut_at_bytes = self.to_server_bytes + count_bytes

    async def wait_passed(self, count_bytes: int) -> None:
        """Wait until so many bytes have gone to the server in all."""
        while self.to_server_bytes < count_bytes:
            await self._changed.wait()

    def _set(self, *, holds_requests: bool = False, holds_replies: bool = False, pause_s: float = 0.0) -> None:
        self._holds_requests, self._holds_replies, self._pause_s = holds_requests, holds_replies, pause_s
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _serve(
        self, listeners: list[trio.SocketListener], *, task_status: trio.TaskStatus[trio.CancelScope]
    ) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await trio.serve_listeners(self._connect, listeners, handler_nursery=self._tasks)

    async def _connect(self, client: trio.SocketStream) -> None:
        self.connection_count += 1
        self._open.add(client)
        server: trio.SocketStream | None = None
        try:
            server = await trio.open_tcp_stream(_HOST, self._target_port)
            self._open.add(server)
            async with trio.open_nursery() as pumps:
                pumps.start_soon(self._pass_requests, client, server)
                pumps.start_soon(self._pass_replies, server, client)
        except* _BROKEN:
            pass  # whichever side went, the other one is closed below
        finally:
            for stream in (client, server):
                if stream is not None:
                    self._open.discard(stream)
                    stream.socket.close()

    async def _pass_requests(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        while data := await client.receive_some(_CHUNK_BYTES):
            if self._pause_s:
                await trio.sleep(self._pause_s)
            while self._holds_requests:
                await self._changed.wait()
            if self._cut_at_bytes is not None and self.to_server_bytes + len(data) >= self._cut_at_bytes:
                await server.send_all(data[: self._cut_at_bytes - self.to_server_bytes])
                self._cut_at_bytes = None
                self.cut()
                return
            try:
                await server.send_all(data)
            except _BROKEN:
                return  # what it answered before is still passed back
            self.to_server_bytes += len(data)
            self._tell()
        with suppress(*_BROKEN):
            await server.send_eof()

    async def _pass_replies(self, server: trio.SocketStream, client: trio.SocketStream) -> None:
        while data := await server.receive_some(_CHUNK_BYTES):
            while self._holds_replies:
                await self._changed.wait()
            await client.send_all(data)
            self.to_client_bytes += len(data)
        # A server that ended has nothing more to hear either.
        raise trio.BrokenResourceError("the server closed")


@asynccontextmanager
async def open_proxy(target_port: int) -> AsyncIterator[Proxy]:
    """A proxy that listens and passes everything to a port on loopback."""
    async with trio.open_nursery() as tasks:
        proxy = Proxy(target_port, tasks)
        await proxy.listen()
        try:
            yield proxy
        finally:
            tasks.cancel_scope.cancel()
