"""The server: an engine, its listeners, and an orderly stop. The process around it is `journal.server.process`."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog
import trio
from structlog.contextvars import bind_contextvars

from journal.engine import Engine
from journal.net.certificate_names import name_in
from journal.net.listening import accept, linger, listens_at, prepare
from journal.net.origins import Origins
from journal.net.output import Carrier, Output, TcpCarrier
from journal.net.tls_sockets import TlsSocket
from journal.net.websocket_handshake import open_websocket
from journal.protocol.errors import RemoteProtocolError, ShuttingDownError
from journal.protocol.frames import HELLO_MAX_FRAME_BYTES
from journal.server.admin import Administration, admin_routes
from journal.server.admin.endpoints import Administered
from journal.server.admin.forms import NodeInfo
from journal.server.client_connection import Accepted, ClientConnection, Peer
from journal.server.connection import Connection
from journal.server.console import console_routes
from journal.server.heartbeat import PATIENCE_S, Heartbeat
from journal.server.http import App, Identity, make_app, no_identity, serve_http
from journal.server.http_connections import Encryption
from journal.server.inventory import InventoryTaker
from journal.server.json_protocol import SUBPROTOCOL, JsonConnection, JsonOperations
from journal.server.json_protocol.connection import JsonCarrier
from journal.server.login import Login
from journal.server.metrics import ServerCollector, page_of
from journal.server.observers import Observers, why_not_ready
from journal.server.open_connections import OpenConnection, OpenConnections, Transport
from journal.server.operations import ServerOperations, server_name, server_version
from journal.server.queues import QueueOperations
from journal.server.receive_buffers import BufferPool
from journal.server.security import Readable, Security
from journal.server.shard_operations import ShardOperations
from journal.server.statistics import ServerStatistics
from journal.server.stored_quotas import StoredQuotas
from journal.server.tcp import receive
from journal.server.tls import Listener, shake_hands, speaks_alike
from journal.server.websocket import WebSocketCarrier, receive_messages
from journal.settings.server import OnFailure
from journal.telemetry.loop_monitor import LoopLag, LoopMonitor
from shards.errors import NotOwnerError, StorageError

_GOODBYE_S = 2.0
_GOODBYE_AFTER_FAILURE_S = 5.0
_GOODBYE_AFTER_LOSS_S = 0.5
_LEAVING_AT_ONCE = 100

_Served = TypeVar("_Served", bound=ClientConnection)

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class Server:
    """Serves one engine to clients.

    Attributes:
        addresses: Addresses of its listeners, as ``name=HOST:PORT``.
        guard: Decides which clients are accepted.
        admission: Authenticates them.
        stopping: Set when the server is to stop.
        accepts_no_more: Set when it accepts no connections any more. Those that it has are being ended.
        inventory: Counts shards, cursors and queues in the background.
        loop_lag: Measures how late the event loop is.
        loop_monitor: Measures its iterations while the server runs.
    """

    def __init__(
        self,
        engine: Engine,
        stopping: trio.Event | None = None,
        guard: Security | None = None,
        statistics: ServerStatistics | None = None,
        identity: Identity = no_identity,
    ) -> None:
        self.engine = engine
        self._identity = identity
        self.guard = Security(engine.config) if guard is None else guard
        self.statistics = ServerStatistics() if statistics is None else statistics
        self.stopping = trio.Event() if stopping is None else stopping
        self.accepts_no_more = trio.Event()
        self.addresses: list[str] = []
        self.inventory = InventoryTaker(engine)
        self.loop_lag = LoopLag(lambda: engine.has_room)
        self.loop_monitor = LoopMonitor()
        storage = engine.config.storage
        # Received entries are in these buffers until they are in the log.
        self._pool = BufferPool(storage.receive_buffer_bytes, storage.receive_buffers, on_shortage=engine.free_memory)
        self._stored = StoredQuotas(engine, self.guard.quotas)
        self.admission = Login(self.guard, self._stored)
        self._shards = ShardOperations(engine)
        self._connections = OpenConnections()
        self._operations = ServerOperations(
            engine, self.statistics, self._status, self.admission, self._shards, self._connections
        )
        self._json_operations = JsonOperations(engine, self._shards, self.admission, self.statistics, server_name())
        self._origins = Origins(engine.config.listen.websocket_origins)
        self._started = time.monotonic()
        # Clients that are not authenticated yet, by socket, oldest first.
        self._unauthenticated: dict[socket.socket, trio.CancelScope] = {}
        self._gone = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery
        self._accepting: trio.Nursery

    def describe(self) -> dict[str, Any]:
        """Statistics for STATUS: numbers by name."""
        engine, statistics = self.engine.statistics(), self.statistics
        return {
            "node_id": self.engine.node_id,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "connections": statistics.connections,
            "appends": statistics.appends,
            "append_bytes": statistics.append_bytes,
            "fetched_bytes": statistics.fetched_bytes,
            "shards": engine.shard_count,
            "subscriptions": engine.subscription_count,
            "committed_lsn": engine.committed_lsn,
            "commit_groups": engine.commit_groups,
            "checkpoints": engine.checkpoints,
            "journal_used_bytes": engine.journal_bytes,
            "tail_bytes": engine.tail_bytes,
            "memory_bytes": engine.memory_bytes,
            "max_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "disk_full": engine.disk_full,
            "sealed_segments": engine.sealed_segments,
            "conversion_failure": engine.conversion_failure,
            "shared_files": engine.shared_files.count,
            "shared_live_bytes": engine.shared_files.live_bytes,
            "shared_dead_bytes": engine.shared_files.dead_bytes,
            "failure": str(self.engine.failure or ""),
        }

    def _status(self) -> dict[str, Any]:
        """Content of the STATUS reply: the statistics, and the restores of the node."""
        return {**self.describe(), "restores": self.engine.described_restores()}

    def _administration(self) -> Administration:
        return Administration(
            on=Administered(
                self._shards, QueueOperations(self.engine, self._shards), self._connections, self._describe_node
            ),
            admission=self.admission,
            origins=self._origins,
            statistics=self.statistics,
            version=server_version(),
            is_stopping=self.stopping.is_set,
            report=self._report,
        )

    def _describe_node(self) -> NodeInfo:
        reasons = self.why_not_ready()
        return NodeInfo(
            self.engine.node_id,
            server_name(),
            not reasons,
            reasons,
            self.addresses,
            self.describe(),
            self.engine.described_restores(),
        )

    def why_not_ready(self) -> list[str]:
        """All reasons why it accepts no appends now."""
        return why_not_ready(self.engine, self.loop_lag, is_stopping=self.stopping.is_set())

    def make_app(self, sockets: Mapping[str, socket.socket]) -> App:
        """The HTTP application of a server with these sockets."""
        collector = ServerCollector(
            self.engine,
            self.statistics,
            self.inventory,
            self.loop_lag,
            self.loop_monitor,
            self.why_not_ready,
            self.pushed_bytes,
            self.guard.access.logins,
        )
        websocket_port = sockets["websocket"].getsockname()[1] if "websocket" in sockets else None
        pages = [*admin_routes(self._administration()), *console_routes(websocket_port)]
        return make_app(self.why_not_ready, page_of(collector), pages, self.observers(), self._told_to_followers)

    def observers(self) -> Observers:
        """Who decides which clients may see the metrics."""
        return Observers(self.admission, self.statistics, self._origins)

    def _told_to_followers(self, headers: Mapping[str, str]) -> dict[str, str]:
        identity = self._identity(headers)
        # One that reaches the log store takes over from an owner that does not.
        figures = self.engine.statistics().log
        return {} if figures is not None and figures.is_unavailable else identity

    def pushed_bytes(self) -> int:
        """Bytes that were pushed to subscriptions since the start."""
        return self.statistics.pushed_bytes + sum(each.pushing.pushed_bytes for each in self._connections)

    async def run(self, sockets: dict[str, socket.socket], *, task_status: trio.TaskStatus[list[str]]) -> None:
        """Serve on bound sockets until `stopping` is set or the storage has failed; then disconnect clients in order.

        Everything that was received is committed, and acknowledged if its client still reads, within two seconds; then
        each client is sent the reason and its connection is closed. After a failure of the storage nothing is
        acknowledged, and reads in progress have five seconds.

        The server of a follower serves reads on the socket ``tcp`` alone, until `serve_all`.
        """
        async with trio.open_nursery() as self._nursery:
            async with trio.open_nursery() as self._accepting:
                if "tcp" in sockets:
                    self._accepting.start_soon(accept, sockets["tcp"], partial(self._admit, self._serve_tcp))
                self._nursery.start_soon(self.guard.access.logins.run)
                self._nursery.start_soon(self._stored.run, self._quotas_changed)
                self._nursery.start_soon(self.guard.refused_acts.keep_telling)
                self._nursery.start_soon(self.guard.refused_logins.keep_telling)
                self._nursery.start_soon(self.guard.repeated_acts.keep_telling)
                self._nursery.start_soon(self._stop_after_failure)
                if not self.engine.is_following:
                    self.serve_all(sockets)
                task_status.started(self.addresses)
                await self.stopping.wait()
                self._accepting.cancel_scope.cancel()
            self.accepts_no_more.set()
            self.engine.begin_stop()
            for connection in self._connections:
                connection.receiving.cancel()
            with trio.move_on_after(self._goodbye_s()):
                while self.statistics.connections:
                    await self._gone.park()
            self._nursery.cancel_scope.cancel()

    def serve_all(self, sockets: Mapping[str, socket.socket]) -> None:
        """Serve everything, on all sockets: this server owns its store. Clients that only read may change things now.

        Args:
            sockets: The bound sockets by name. The one with the name ``tcp`` is served already.
        """
        if "websocket" in sockets:
            self._accepting.start_soon(accept, sockets["websocket"], partial(self._admit, self._serve_websocket))
        if "http" in sockets:
            app, encryption = self.make_app(sockets), self._http_encryption()
            self._nursery.start_soon(
                serve_http, app, sockets["http"], self.stopping, encryption, self.guard.http_senders
            )
        self._nursery.start_soon(self.loop_lag.run)
        self._nursery.start_soon(self.loop_monitor.run)
        self._nursery.start_soon(self.inventory.run)
        self.addresses.extend(f"{name}={listens_at(sock)}" for name, sock in sockets.items())
        for connection in self._connections:
            connection.grant_again()

    def _why_stopping(self) -> StorageError:
        failure = self.engine.failure
        if isinstance(failure, NotOwnerError):
            return NotOwnerError(failure.owner)
        return ShuttingDownError("the server is stopping; connect again")

    def _goodbye_s(self) -> float:
        failure = self.engine.failure
        if failure is None:
            return _GOODBYE_S
        # What is read from a store that another server owns may be old.
        return _GOODBYE_AFTER_LOSS_S if isinstance(failure, NotOwnerError) else _GOODBYE_AFTER_FAILURE_S

    async def _stop_after_failure(self) -> None:
        failure = await self.engine.wait_failed()
        if self.engine.is_following:
            log.info("ends reads from this follower, at least for now", connections=self.statistics.connections)
        elif isinstance(failure, NotOwnerError):
            log.warning("lost the store to another server", owner=failure.owner or "not known yet")
        elif self.engine.config.storage.on_failure is OnFailure.EXIT:
            log.error(
                "stopping, as the storage failed", at_most_s=_GOODBYE_AFTER_FAILURE_S, setting="storage.on_failure"
            )
        else:
            return
        self.stopping.set()

    def _admit(self, serve: Callable[[socket.socket, str], Awaitable[None]], sock: socket.socket, peer: str) -> bool:
        limit = self.engine.config.limits.max_connections
        if self.statistics.connections >= limit:
            self.statistics.count_closed("max_connections")
            if not self._unauthenticated or self.statistics.connections >= limit + _LEAVING_AT_ONCE:
                log.warning("connection refused", peer=peer, limit="limits.max_connections", allowed=limit)
                return False
            # The connection that has sent nothing for longest makes room: a flood of such connections must not block
            # clients.
            log.warning("silent connection closed", limit="limits.max_connections", allowed=limit)
            self._unauthenticated.pop(next(iter(self._unauthenticated))).cancel()
        self.statistics.connections += 1
        scope = self._unauthenticated[sock] = trio.CancelScope()
        self._nursery.start_soon(self._contained, serve, sock, peer, scope)
        return True

    async def _contained(
        self,
        serve: Callable[[socket.socket, str], Awaitable[None]],
        sock: socket.socket,
        peer: str,
        scope: trio.CancelScope,
    ) -> None:
        """Serve one connection. An error in it ends no other connection."""
        # All log messages of this task name its peer.
        bind_contextvars(peer=peer)
        try:
            with sock, scope:
                await serve(sock, peer)
        except OSError:
            # The connection broke before its first request.
            pass
        except Exception as error:  # noqa: BLE001 it ends this request or connection only
            self._report(error, 0)
        finally:
            self._unauthenticated.pop(sock, None)
            self.statistics.connections -= 1
            if not self.statistics.connections:
                self._gone.unpark_all()

    def _let_in(self, sock: socket.socket) -> None:
        self._unauthenticated.pop(sock, None)

    def take_over(self, readable: Readable) -> None:
        """Apply users, tokens, rules and certificates that were read again; clients without rights are disconnected."""
        self.guard.take_over(readable)
        for connection in list(self._connections):
            self.admission.renew(connection)

    def _quotas_changed(self) -> None:
        for connection in self._connections:
            connection.grant_again()

    async def _serve_tcp(self, sock: socket.socket, peer: str) -> None:
        prepare(sock)
        timeout = self.engine.config.limits.hello_timeout_s
        if self.guard.tls is None:
            await self._serve(
                "tcp",
                TcpCarrier(sock),
                Peer(peer, "", partial(self._let_in, sock)),
                self._connection,
                lambda connection: receive(connection, sock, self._pool, timeout, is_plain=True),
            )
            await linger(sock)
            return
        if not await self._speaks_alike(sock, "tcp"):
            return
        secure = TlsSocket(sock, self.guard.tls)
        try:
            await shake_hands(secure.handshake, timeout_s=timeout, statistics=self.statistics)
            await self._serve(
                "tcp",
                TcpCarrier(secure),
                Peer(peer, self._name_in(secure.peer_certificate), partial(self._let_in, sock)),
                self._connection,
                lambda connection: receive(connection, secure, self._pool, timeout, holds_some=secure.holds_some),
            )
            await linger(secure.say_end())
        finally:
            secure.close()

    def _name_in(self, certificate: object) -> str:
        return name_in(certificate, self.guard.access.known.certificate_field)

    async def _speaks_alike(self, sock: socket.socket, listener: Listener) -> bool:
        return await speaks_alike(
            sock,
            listener,
            encrypted=self.guard.tls is not None,
            timeout_s=self.engine.config.limits.hello_timeout_s,
            statistics=self.statistics,
        )

    def _http_encryption(self) -> Encryption:
        return Encryption(self.guard.current_tls, self.engine.config.limits.hello_timeout_s, self.statistics)

    def _connection(self, accepted: Accepted) -> Connection:
        return Connection(accepted, self._operations)

    async def _serve_websocket(self, sock: socket.socket, peer: str) -> None:
        limits = self.engine.config.limits
        sock.setblocking(False)
        if not await self._speaks_alike(sock, "websocket"):
            return
        stream: trio.abc.Stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        certificate_name = ""
        if self.guard.tls is not None:
            secure = trio.SSLStream(stream, self.guard.tls, server_side=True, https_compatible=True)
            await shake_hands(secure.do_handshake, timeout_s=limits.hello_timeout_s, statistics=self.statistics)
            certificate_name = self._name_in(secure.getpeercert())
            stream = secure
        async with open_websocket(
            stream,
            max_message_bytes=HELLO_MAX_FRAME_BYTES,
            handshake_timeout_s=limits.hello_timeout_s,
            choices=(SUBPROTOCOL,),
            allows_origin=self._origins.allows,
        ) as websocket:
            heartbeat = Heartbeat(websocket)

            def greeted() -> None:
                websocket.allow(limits.max_frame_bytes)
                self._let_in(sock)

            if websocket.subprotocol == SUBPROTOCOL:
                await self._serve(
                    "json",
                    JsonCarrier(websocket),
                    Peer(peer, certificate_name, greeted),
                    lambda accepted: JsonConnection(accepted, self._json_operations),
                    lambda connection: connection.receive(heartbeat, limits.hello_timeout_s),
                    heartbeat,
                )
            else:
                await self._serve(
                    "websocket",
                    WebSocketCarrier(websocket),
                    Peer(peer, certificate_name, greeted),
                    self._connection,
                    lambda connection: receive_messages(connection, heartbeat, limits.hello_timeout_s),
                    heartbeat,
                )

    async def _serve(
        self,
        transport: Transport,
        carrier: Carrier,
        peer: Peer,
        make: Callable[[Accepted], _Served],
        receive_from: Callable[[_Served], Awaitable[None]],
        heartbeat: Heartbeat | None = None,
    ) -> None:
        statistics = self.statistics
        statistics.connections_total += 1
        bind_contextvars(connection=statistics.connections_total)
        async with trio.open_nursery() as nursery:
            output = Output(
                carrier,
                nursery.start_soon,
                limit_bytes=self.engine.config.limits.max_output_bytes_per_connection,
                on_broken=nursery.cancel_scope.cancel,
            )
            connection = make(
                Accepted(statistics.connections_total, peer, self.engine, output, statistics, nursery, self._report)
            )
            opened = OpenConnection(connection, transport, self.engine.now_us())
            nursery.start_soon(connection.pushing.run)
            if heartbeat is not None:
                nursery.start_soon(self._watch, heartbeat, nursery.cancel_scope)
            self._connections.add(opened)
            try:
                with connection.receiving:
                    await receive_from(connection)
                if connection.refusal is not None:
                    statistics.count_closed("refused")
                    log.warning("connection refused", **connection.named, reason=str(connection.refusal))
                if self.stopping.is_set():
                    await connection.settle()
                    connection.tell(self._why_stopping())
            except RemoteProtocolError as error:
                statistics.count_error(error)
                statistics.count_closed("protocol")
                connection.tell(error)
                log.warning("connection closed", **connection.named, reason=str(error))
            except OSError:
                output.abandon()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _GOODBYE_S):
                    await output.wait_drained()
                if output.stalled_bytes:
                    statistics.count_closed("stalled")
                    log.warning(
                        "connection closed",
                        reason=f"the peer read none of {output.stalled_bytes} waiting bytes for "
                        f"{output.stalled_after_s:g} s",
                    )
                connection.close()
                self.admission.leave(connection)
                # Until here its requests may be carried out: `_end_client` of another client has to find the
                # connection.
                self._connections.discard(opened)
                statistics.pushed_bytes += connection.pushing.pushed_bytes
            nursery.cancel_scope.cancel()

    async def _watch(self, heartbeat: Heartbeat, connection_scope: trio.CancelScope) -> None:
        await heartbeat.wait_silent()
        self.statistics.count_closed("silent")
        log.warning("connection closed", reason=f"it was silent for {PATIENCE_S:.0f} s")
        connection_scope.cancel()

    def _report(self, error: Exception, connection: int) -> None:
        log.error("unexpected error", exc_info=error)
