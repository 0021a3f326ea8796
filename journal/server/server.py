"""The server: an engine, its listeners, and an orderly stop."""

from __future__ import annotations

import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
import trio
from trio_websocket import WebSocketRequest

from journal.config import ServerConfig, parse_address
from journal.engine import Engine, open_engine
from journal.protocol.errors import RemoteProtocolError
from journal.server.connection import Connection
from journal.server.http import make_app, serve_http
from journal.server.log import configure_log
from journal.server.operations import ServerOperations
from journal.server.output import Carrier, Output, PeerStalledError, TcpCarrier
from journal.server.receive_buffers import BufferPool
from journal.server.statistics import ServerStatistics
from journal.server.tcp import prepare, receive
from journal.server.websocket import WebSocketCarrier, receive_messages

_BACKLOG = 1024
_GOODBYE_S = 2.0
_SWITCH_INTERVAL_S = 0.001

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class Server:
    """Serves one engine to clients.

    Attributes:
        addresses: What it listens on, as ``name=HOST:PORT``.
        stopping: Set when the server is told to stop.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.statistics = ServerStatistics()
        self.stopping = trio.Event()
        self.addresses: list[str] = []
        storage = engine.config.storage
        self._pool = BufferPool(storage.receive_buffer_bytes, storage.receive_buffers)
        self._operations = ServerOperations(engine, self.statistics, self.describe)
        self._started = time.monotonic()
        self._connections = trio.CancelScope()

    def describe(self) -> dict[str, Any]:
        """Statistics for STATUS: plain numbers by name."""
        engine, statistics = self.engine, self.statistics
        return {
            "node_id": engine.node_id,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "connections": statistics.connections,
            "appends": statistics.appends,
            "append_bytes": statistics.append_bytes,
            "fetched_bytes": statistics.fetched_bytes,
            "shards": len(engine.table.catalogue),
            "subscriptions": engine.subscriptions.count,
            "committed_lsn": engine.committer.committed_lsn,
            "commit_groups": engine.committer.groups_committed,
            "checkpoints": engine.maintenance.checkpoints,
            "journal_used_bytes": engine.writer.used_bytes,
            "tail_bytes": engine.table.tail_pool.held_bytes,
            "memory_bytes": engine.table.memory_pool.held_bytes,
            "max_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "disk_full": engine.maintenance.disk_full is not None,
            "failure": str(engine.failure or ""),
        }

    async def run(self, sockets: dict[str, socket.socket], *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Serve on bound sockets until told to stop; then let clients go in order.

        Everything received is committed and acknowledged as far as its client still listens, within two seconds.
        """
        async with trio.open_nursery() as nursery:
            if "tcp" in sockets:
                nursery.start_soon(self._accept_tcp, sockets["tcp"])
            if "websocket" in sockets:
                nursery.start_soon(self._accept_websocket, sockets["websocket"])
            if "http" in sockets:
                app = make_app(self.engine, self.statistics, self.stopping.is_set)
                nursery.start_soon(serve_http, app, sockets["http"], self.stopping)
            for name, sock in sockets.items():
                host, port = sock.getsockname()[:2]
                self.addresses.append(f"{name}={f'[{host}]' if ':' in host else host}:{port}")
            task_status.started(self.addresses)
            await self.stopping.wait()
            with trio.move_on_after(_GOODBYE_S):
                await self.engine.committer.drain()
            nursery.cancel_scope.cancel()

    # TCP

    async def _accept_tcp(self, sock: socket.socket) -> None:
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        async with trio.open_nursery() as nursery:
            while not self.stopping.is_set():
                try:
                    client, address = sock.accept()
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(sock)
                    continue
                except OSError as error:
                    # Out of descriptors, or the client is gone already: others must still be served.
                    log.warning("cannot accept", error=str(error))
                    await trio.sleep(0.1)
                    continue
                if self.statistics.connections >= self.engine.config.limits.max_connections:
                    log.warning("connection refused", peer=str(address), limit="limits.max_connections")
                    client.close()
                    continue
                nursery.start_soon(self._serve_tcp, client, f"{address[0]}:{address[1]}")

    async def _serve_tcp(self, sock: socket.socket, peer: str) -> None:
        with sock:
            prepare(sock)
            timeout = self.engine.config.limits.hello_timeout_s
            await self._serve(TcpCarrier(sock), peer, lambda connection: receive(connection, sock, self._pool, timeout))

    # WebSocket

    async def _accept_websocket(self, sock: socket.socket) -> None:
        sock.listen(_BACKLOG)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))

        async def handle(request: WebSocketRequest) -> None:
            websocket = await request.accept()
            timeout = self.engine.config.limits.hello_timeout_s
            peer = str(getattr(websocket.remote, "address", websocket.remote))
            await self._serve(
                WebSocketCarrier(websocket), peer, lambda connection: receive_messages(connection, websocket, timeout)
            )

        await _serve_websockets(handle, listener, self.engine.config.limits.max_frame_bytes)

    # Both

    async def _serve(self, carrier: Carrier, peer: str, receive_from: Callable[[Connection], Awaitable[None]]) -> None:
        """Run one connection. Nothing that happens in it ends another."""
        statistics = self.statistics
        statistics.connections += 1
        statistics.connections_total += 1
        number = statistics.connections_total
        output = Output(carrier, self.engine.config.limits.max_output_bytes_per_connection)
        try:
            async with trio.open_nursery() as nursery:
                connection = Connection(
                    number, self.engine, self._operations, output, statistics, nursery, self._report
                )
                nursery.start_soon(self._write, output, nursery.cancel_scope, peer)
                nursery.start_soon(connection.pushing.run)
                try:
                    await receive_from(connection)
                except RemoteProtocolError as error:
                    statistics.count_error(error)
                    log.warning("connection closed", peer=peer, client=connection.client, reason=str(error))
                except OSError:
                    output.abandon()
                finally:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + _GOODBYE_S):
                        await output.wait_drained()
                    connection.close()
                nursery.cancel_scope.cancel()
        except Exception as error:
            self._report(error, number)
        finally:
            statistics.connections -= 1

    async def _write(self, output: Output, connection_scope: trio.CancelScope, peer: str) -> None:
        try:
            await output.run()
        except PeerStalledError as error:
            log.warning("connection closed", peer=peer, reason=str(error))
        except OSError:
            pass
        connection_scope.cancel()

    def _report(self, error: Exception, connection: int) -> None:
        log.error("unexpected error", connection=connection, exc_info=error)


async def _serve_websockets(
    handle: Callable[[WebSocketRequest], Awaitable[None]], listener: trio.SocketListener, max_message_bytes: int
) -> None:
    from trio_websocket import WebSocketServer

    server = WebSocketServer(handle, [listener], max_message_size=max_message_bytes)
    await server.run()


def bind(config: ServerConfig) -> dict[str, socket.socket]:
    """Bind the configured addresses.

    Raises:
        DataDirectoryError: Never.
        OSError: An address is taken or not of this machine; the message names the setting.
    """
    sockets: dict[str, socket.socket] = {}
    for name in ("tcp", "websocket", "http"):
        address = parse_address(getattr(config.listen, name))
        if address is None:
            continue
        host, port = address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            for other in sockets.values():
                other.close()
            raise OSError(
                error.errno,
                f"cannot listen on {host}:{port} (listen.{name}): {error.strerror}; choose another with --listen or in the configuration",
            ) from error
        sockets[name] = sock
    return sockets


async def run_server(
    config: ServerConfig, path: str, *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve a data directory until SIGTERM or SIGINT; reports its addresses once it accepts.

    Raises:
        DataDirectoryError: The directory is in use or cannot be used.
        CorruptionError: Acknowledged data is damaged and it cannot be told whose.
        OSError: An address cannot be listened on.
    """
    configure_log(config.log)
    # Let the disk thread have the interpreter sooner than after the default 5 ms when a commit comes back.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    sockets = bind(config)
    try:
        async with open_engine(path, config) as engine:
            recovery = engine.recovery
            log.info("recovered", entries=recovery.entries, truncated_bytes=recovery.truncated_bytes)
            for damage in recovery.damages:
                log.error("shard stopped", damage=damage)
            server = Server(engine)
            async with trio.open_nursery() as nursery:
                addresses = await nursery.start(server.run, sockets)
                nursery.start_soon(_stop_on_signal, server, nursery)
                task_status.started(addresses)
        log.info("stopped")
    finally:
        for sock in sockets.values():
            sock.close()


async def _stop_on_signal(server: Server, nursery: trio.Nursery) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name)
            server.stopping.set()
            nursery.cancel_scope.deadline = trio.current_time() + _GOODBYE_S
            return
