"""The server: an engine, its listeners, and an orderly stop."""

from __future__ import annotations

import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import structlog
import trio
from structlog.contextvars import bind_contextvars

from journal.config import ServerConfig
from journal.engine import Engine, open_engine
from journal.listening import accept, bind, linger, listens_at, prepare, reached_at
from journal.log import configure_log
from journal.observing.census import CensusTaker
from journal.observing.pulse import Pulse
from journal.protocol.errors import RemoteProtocolError, ShuttingDownError
from journal.server.connection import Connection
from journal.server.http import App, Front, make_app, serve_http
from journal.server.metrics import ServerCollector, page_of
from journal.server.operations import ServerOperations
from journal.server.output import Carrier, Output, PeerStalledError, TcpCarrier
from journal.server.readiness import why_not_ready
from journal.server.receive_buffers import BufferPool
from journal.server.statistics import ServerStatistics
from journal.server.tcp import receive
from journal.server.websocket import WebSocketCarrier, receive_messages
from journal.websocket_opening import open_websocket

_GOODBYE_S = 2.0
_SWITCH_INTERVAL_S = 0.001

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class Server:
    """Serves one engine to clients.

    Attributes:
        addresses: What it listens on, as ``name=HOST:PORT``.
        stopping: Set when the server is told to stop.
        census: Counts what there is, in the background.
        pulse: Watches the event loop.
    """

    def __init__(self, engine: Engine, stopping: trio.Event | None = None) -> None:
        self.engine = engine
        self.statistics = ServerStatistics()
        self.stopping = trio.Event() if stopping is None else stopping
        self.addresses: list[str] = []
        self.census = CensusTaker(engine)
        self.pulse = Pulse(engine.maintenance.has_room)
        storage = engine.config.storage
        self._pool = BufferPool(storage.receive_buffer_bytes, storage.receive_buffers)
        self._operations = ServerOperations(engine, self.statistics, self.describe)
        self._started = time.monotonic()
        self._connections: set[Connection] = set()
        self._gone = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery

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
            "sealed_segments": engine.sealing.sealed_segments,
            "sealing_failure": engine.sealing.last_failure,
            "failure": str(engine.failure or ""),
        }

    def why_not_ready(self) -> list[str]:
        """All reasons why it takes no appends just now."""
        return why_not_ready(self.engine, self.pulse, is_stopping=self.stopping.is_set())

    def make_app(self) -> App:
        """What it answers over HTTP."""
        collector = ServerCollector(
            self.engine, self.statistics, self.census, self.pulse, self.why_not_ready, self._pushed_bytes
        )
        return make_app(self.why_not_ready, page_of(collector))

    def _pushed_bytes(self) -> int:
        return self.statistics.pushed_bytes + sum(each.pushing.pushed_bytes for each in self._connections)

    async def run(self, sockets: dict[str, socket.socket], *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Serve on bound sockets until told to stop; then let clients go in order.

        Everything received is committed and acknowledged as far as its client still listens, within two seconds; then
        each client is told that the server stops, and its connection is closed.
        """
        async with trio.open_nursery() as self._nursery:
            async with trio.open_nursery() as accepting:
                for name, serve in (("tcp", self._serve_tcp), ("websocket", self._serve_websocket)):
                    if name in sockets:
                        accepting.start_soon(accept, sockets[name], partial(self._admit, serve))
                if "http" in sockets:
                    self._nursery.start_soon(serve_http, self.make_app(), sockets["http"], self.stopping)
                self._nursery.start_soon(self.pulse.run)
                self._nursery.start_soon(self.census.run)
                self.addresses.extend(f"{name}={listens_at(sock)}" for name, sock in sockets.items())
                task_status.started(self.addresses)
                await self.stopping.wait()
                accepting.cancel_scope.cancel()
            for connection in self._connections:
                connection.receiving.cancel()
            with trio.move_on_after(_GOODBYE_S):
                while self.statistics.connections:
                    await self._gone.park()
            self._nursery.cancel_scope.cancel()

    def _admit(self, serve: Callable[[socket.socket, str], Awaitable[None]], sock: socket.socket, peer: str) -> bool:
        limit = self.engine.config.limits.max_connections
        if self.statistics.connections >= limit:
            self.statistics.count_closed("max_connections")
            log.warning("connection refused", peer=peer, limit="limits.max_connections", allowed=limit)
            return False
        self.statistics.connections += 1
        self._nursery.start_soon(self._contained, serve, sock, peer)
        return True

    async def _contained(
        self, serve: Callable[[socket.socket, str], Awaitable[None]], sock: socket.socket, peer: str
    ) -> None:
        """Run one connection. Nothing that happens in it ends another."""
        # Whatever is logged on its behalf says whose it is.
        bind_contextvars(peer=peer)
        try:
            with sock:
                await serve(sock, peer)
        except OSError:
            # It broke before there was anything to say.
            pass
        except Exception as error:  # noqa: BLE001 it ends this request or connection, no other
            self._report(error, 0)
        finally:
            self.statistics.connections -= 1
            if not self.statistics.connections:
                self._gone.unpark_all()

    async def _serve_tcp(self, sock: socket.socket, peer: str) -> None:
        prepare(sock)
        timeout = self.engine.config.limits.hello_timeout_s
        await self._serve(TcpCarrier(sock), peer, lambda connection: receive(connection, sock, self._pool, timeout))
        await linger(sock)

    async def _serve_websocket(self, sock: socket.socket, peer: str) -> None:
        limits = self.engine.config.limits
        async with open_websocket(
            trio.SocketStream(trio.socket.from_stdlib_socket(sock)),
            max_message_bytes=limits.max_frame_bytes,
            handshake_timeout_s=limits.hello_timeout_s,
        ) as websocket:
            await self._serve(
                WebSocketCarrier(websocket),
                peer,
                lambda connection: receive_messages(connection, websocket, limits.hello_timeout_s),
            )

    async def _serve(self, carrier: Carrier, peer: str, receive_from: Callable[[Connection], Awaitable[None]]) -> None:
        statistics = self.statistics
        statistics.connections_total += 1
        bind_contextvars(connection=statistics.connections_total)
        output = Output(carrier, self.engine.config.limits.max_output_bytes_per_connection)
        async with trio.open_nursery() as nursery:
            connection = Connection(
                statistics.connections_total, self.engine, self._operations, output, statistics, nursery, self._report
            )
            nursery.start_soon(self._write, output, nursery.cancel_scope)
            nursery.start_soon(connection.pushing.run)
            self._connections.add(connection)
            try:
                with connection.receiving:
                    await receive_from(connection)
                if self.stopping.is_set():
                    await connection.settle()
                    connection.tell(ShuttingDownError("the server is stopping; connect again"))
            except RemoteProtocolError as error:
                statistics.count_error(error)
                statistics.count_closed("protocol")
                connection.tell(error)
                log.warning("connection closed", client=connection.client, reason=str(error))
            except OSError:
                output.abandon()
            finally:
                self._connections.discard(connection)
                statistics.pushed_bytes += connection.pushing.pushed_bytes
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _GOODBYE_S):
                    await output.wait_drained()
                connection.close()
            nursery.cancel_scope.cancel()

    async def _write(self, output: Output, connection_scope: trio.CancelScope) -> None:
        try:
            await output.run()
        except PeerStalledError as error:
            self.statistics.count_closed("stalled")
            log.warning("connection closed", reason=str(error))
        except OSError:
            pass
        connection_scope.cancel()

    def _report(self, error: Exception, connection: int) -> None:
        log.error("unexpected error", exc_info=error)


async def run_server(
    config: ServerConfig, path: str, *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve a data directory until SIGTERM or SIGINT; reports its addresses once it accepts.

    Raises:
        DataDirectoryError: The directory is in use or cannot be used.
        CorruptionError: Acknowledged data is damaged and it cannot be told whose.
        OSError: An address cannot be listened on.
    """
    log_limit = configure_log(config.log)
    # Let the disk thread have the interpreter sooner than after the default 5 ms when a commit comes back.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    sockets = bind(attrs.asdict(config.listen), main="tcp")
    addresses = [f"{name}={listens_at(sock)}" for name, sock in sockets.items()]
    stopping = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            # Signals are taken and health is told from before the start until after the last checkpoint, which a
            # second signal must not cut.
            await nursery.start(_stop_on_signal, stopping)
            nursery.start_soon(log_limit.keep_telling)
            front = Front(stopping.is_set)
            if "http" in sockets:
                nursery.start_soon(serve_http, front, sockets["http"], trio.Event())
            async with open_engine(path, config) as engine:
                recovery = engine.recovery
                log.info("recovered", entries=recovery.entries, truncated_bytes=recovery.truncated_bytes)
                for damage in recovery.damages:
                    log.error("shard stopped", damage=damage)
                server = Server(engine, stopping)
                front.app = server.make_app()
                async with trio.open_nursery() as serving:
                    await serving.start(server.run, {name: sock for name, sock in sockets.items() if name != "http"})
                    tcp = reached_at(sockets["tcp"]) if "tcp" in sockets else ""
                    await trio.to_thread.run_sync(engine.announce, tcp)
                    task_status.started(addresses)
            log.info("stopped")
            nursery.cancel_scope.cancel()
    finally:
        log_limit.tell(also_unfinished=True)
        for sock in sockets.values():
            sock.close()


async def _stop_on_signal(stopping: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("already stopping" if stopping.is_set() else "stopping", signal=signal.Signals(number).name)
            stopping.set()
