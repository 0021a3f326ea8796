"""The connections of the HTTP listener: their number, protocol and time limits, and the rate of requests.

Hypercorn implements HTTP/1.1 on each connection. Its own listener would accept any number of connections, wait without
end for a peer that reads nothing, even while the server stops, and carry out the pipelined requests of a peer that has
disconnected. The application is `journal.server.http`.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote_to_bytes

import attrs
import h11
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app

from journal.access.authentication import network_of
from journal.access.quotas import Bucket
from journal.net.listening import accept
from journal.server.http_senders import HttpSenders
from journal.server.statistics import ServerStatistics
from journal.server.tls import shake_hands, speaks_alike

MOST_CONNECTIONS: Final = 1000
"""Few clients read health and metrics, and each connection takes a file descriptor from the other clients."""

MOST_OF_A_NETWORK: Final = 100
"""Connections from one address (an IPv6 network of /64), so that one client does not take those of all others."""

REQUESTS_PER_S: Final = 200
"""Requests that are carried out for one address, unless their credentials are known. More are delayed."""

PATIENCE_S: Final = 30.0
"""A connection is closed when its peer has read nothing for this time."""

_COSTS: Final = {b"/metrics": 20}
"""How many other requests cost as much processor time as one with this path."""

_HEALTH: Final = frozenset({b"/livez", b"/readyz"})
_LOOKED_AT_EVERY_S: Final = 0.25

_SENT_AT_ONCE_BYTES: Final = 64 * 1024

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@attrs.frozen
class Encryption:
    """How connections are encrypted.

    Attributes:
        current: Returns the certificates for a new connection; whether there are any does not change.
        handshake_timeout_s: A peer that has not finished its handshake in this time is disconnected.
        statistics: Counts connections that are refused because they are encrypted, or not, unlike the listener.
    """

    current: Callable[[], ssl.SSLContext | None] = lambda: None
    handshake_timeout_s: float = 10.0
    statistics: ServerStatistics = attrs.Factory(ServerStatistics)


class _PatientStream(trio.abc.HalfCloseableStream):
    """A socket whose sends have a time limit, since hypercorn's sends cannot be cancelled.

    Attributes:
        socket: The socket. Closing it ends every wait for it.
        raw: The same socket, for reading ahead its first bytes.
        network: The network of the peer.
        is_broken: The peer has disconnected, so no answer can reach it.
        is_idle: No request is in progress.
        idle_since_s: When the last request ended, or the connection was accepted.
    """

    def __init__(self, sock: socket.socket, network: str = "") -> None:
        self.raw = sock
        self.network = network
        self.is_broken = False
        self.is_idle = True
        self.idle_since_s = trio.current_time()
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.socket = self._stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes.

        Raises:
            BrokenResourceError: The peer has disconnected, or reads nothing any more.
        """
        with memoryview(data) as view:
            for at in range(0, len(view), _SENT_AT_ONCE_BYTES):
                with trio.move_on_after(PATIENCE_S) as patience, self._noticing():
                    await self._stream.send_all(view[at : at + _SENT_AT_ONCE_BYTES])
                if patience.cancelled_caught:
                    self.is_broken = True
                    self.socket.close()
                    raise trio.BrokenResourceError("the peer reads nothing any more")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        with self._noticing():
            return await self._stream.receive_some(max_bytes)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.is_broken = True
            raise

    def has_left(self) -> bool:
        """Whether the peer has closed its side, which also one does that still reads."""
        polled = select.poll()
        polled.register(self.raw, select.POLLRDHUP)
        return bool(polled.poll(0))

    def mark(self, *, is_idle: bool) -> None:
        """Note that a request began or ended."""
        self.is_idle = is_idle
        self.idle_since_s = trio.current_time()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Http1(H11Protocol):
    """HTTP/1.1 only: an upgrade to HTTP/2 is not accepted. Each request waits until its network may send one.

    Attributes:
        turn: Waits for it.
    """

    turn: Callable[[bytes, bytes], Awaitable[None]]

    async def _check_protocol(self, event: h11.Request) -> None:
        authorization = next((value for name, value in event.headers if name == b"authorization"), b"")
        await self.turn(unquote_to_bytes(event.target.partition(b"?")[0]), authorization.strip())


class _Connection(TCPServer):
    """One connection. It ends as soon as the peer is known to have disconnected, with the requests that wait in it."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: trio.abc.Stream,
        raw: _PatientStream,
        networks: Networks,
        senders: HttpSenders | None,
    ) -> None:
        super().__init__(app, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        self._raw = raw
        self._networks = networks
        self._senders = senders
        self._life = trio.CancelScope()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self._raw.mark(is_idle=event.idle)
        await super().protocol_send(event)
        self._end_if_broken()

    async def _take_turn(self, path: bytes, authorization: bytes) -> None:
        raw, senders = self._raw, self._senders
        # A request that waits has cost nothing yet, so its connection may make room for another one.
        raw.is_idle = True
        # Health has a queue of its own: probes from an address are answered also when its rate is used up.
        line, per_s = f"{raw.network} health" if path in _HEALTH else raw.network, REQUESTS_PER_S
        if senders is not None and authorization and (name := senders.name_of(authorization)) is not None:
            line, per_s = f"principal {name}", senders.rate_of(name)
        if not await self._networks.turn(line, _COSTS.get(path, 1), raw.has_left, per_s=per_s):
            self._life.cancel()
            await trio.lowlevel.checkpoint()
        raw.is_idle = False

    async def run(self) -> None:
        # Hypercorn's own nursery cannot be cancelled: it does not catch its cancellation.
        with self._life:
            await super().run()

    def _end_if_broken(self) -> None:
        if self._raw.is_broken:
            self._life.cancel()

    async def _read_data(self) -> None:
        # Hypercorn's own protocol object would accept an upgrade to HTTP/2.
        made = self.protocol
        self.protocol = _Http1(  # type: ignore[assignment]
            made.app,
            made.config,
            made.context,
            made.task_group,
            made.state,
            made.ssl,
            made.client,
            made.server,
            made.send,
        )
        self.protocol.turn = self._take_turn  # type: ignore[attr-defined]
        await super()._read_data()
        self._end_if_broken()


class Networks:
    """The connections and the rate of requests of each network.

    Attributes:
        streams: All open connections.
    """

    def __init__(self) -> None:
        self.streams: set[_PatientStream] = set()
        self._counts: Counter[str] = Counter()
        self._buckets: dict[str, Bucket] = {}

    def add(self, stream: _PatientStream) -> None:
        """Count an open connection."""
        self.streams.add(stream)
        self._counts[stream.network] += 1

    def discard(self, stream: _PatientStream) -> None:
        """Count a connection no more; a second call changes nothing."""
        if stream not in self.streams:
            return
        self.streams.discard(stream)
        self._counts[stream.network] -= 1
        if not self._counts[stream.network]:
            del self._counts[stream.network]
            now = trio.current_time()
            # A network is forgotten when it has nothing to wait for. The others are looked through at the same time.
            self._buckets = {
                name: each for name, each in self._buckets.items() if name in self._counts or not each.is_full(now)
            }

    def make_room(self, network: str) -> str:
        """Make room for one more connection: that of the same or the largest network that has been idle for longest.

        Returns:
            Why there is no room; empty if there is.
        """
        if self._counts[network] >= MOST_OF_A_NETWORK:
            crowd, limit = network, f"{MOST_OF_A_NETWORK} from one address"
        elif len(self.streams) >= MOST_CONNECTIONS:
            crowd, limit = max(self._counts, key=self._counts.__getitem__), f"{MOST_CONNECTIONS}"
        else:
            return ""
        idle = [stream for stream in self.streams if stream.network == crowd and stream.is_idle]
        if not idle:
            return f"there are {limit} over HTTP already"
        longest = min(idle, key=lambda stream: stream.idle_since_s)
        self.discard(longest)
        longest.socket.close()
        return ""

    async def turn(
        self,
        sender: str,
        cost: int = 1,
        has_left: Callable[[], bool] = lambda: False,
        *,
        per_s: int = REQUESTS_PER_S,
    ) -> bool:
        """Wait until a network or a principal may send one more request.

        Args:
            sender: The network, or a name of the principal that no network has.
            cost: The request costs as much as this number of cheap ones.
            has_left: Whether its sender has disconnected; then it need not be carried out.
            per_s: Cheap requests of this sender that are carried out in a second.

        Returns:
            Whether to carry it out.
        """
        bucket = self._buckets.get(sender)
        if bucket is None:
            bucket = self._buckets[sender] = Bucket(per_s, trio.current_time())
        bucket.spend(cost, trio.current_time())
        turn_s = trio.current_time() + bucket.wait_s(trio.current_time())
        is_due = False
        try:
            while (left_s := turn_s - trio.current_time()) > 0 and not has_left():  # noqa: ASYNC110 no event tells it
                await trio.sleep(min(left_s, _LOOKED_AT_EVERY_S))
            is_due = left_s <= 0
        finally:
            if not is_due:
                # The connection has ended: what comes after it does not wait for it.
                bucket.spend(-cost, trio.current_time())
        return is_due


async def serve_connections(
    app: ASGIFramework,
    config: Config,
    sock: socket.socket,
    stop: trio.Event,
    encryption: Encryption,
    senders: HttpSenders | None = None,
) -> None:
    """Accept and serve until ``stop`` is set; then requests in progress have ``config.graceful_timeout`` seconds.

    Args:
        app: The application.
        config: Settings of each connection.
        sock: The listening socket.
        stop: Ends the listener.
        encryption: How connections are encrypted.
        senders: Knows the principals of credentials; None if all requests count for their address.
    """
    context = WorkerContext(None)
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
    networks = Networks()
    gone = trio.lowlevel.ParkingLot()

    async def serve(stream: _PatientStream, peer: str) -> None:
        try:
            carried = await _encrypted(stream, encryption)
            if carried is not None:
                await _Connection(wrapped, config, context, carried, stream, networks, senders)
        except (OSError, trio.ClosedResourceError):
            # The connection broke, or made room for another one, before the first request.
            pass
        except Exception:
            # It ends this connection only.
            log.exception("unexpected error", peer=peer)
        finally:
            networks.discard(stream)
            stream.socket.close()
            gone.unpark_all()

    def admit(client: socket.socket, peer: str) -> bool:
        network = network_of(peer.rpartition(":")[0])
        if no_room := networks.make_room(network):
            log.warning("connection refused", peer=peer, reason=no_room)
            return False
        stream = _PatientStream(client, network)
        networks.add(stream)
        connections.start_soon(serve, stream, peer)
        return True

    async def end() -> None:
        """Close the remaining connections at the end."""
        try:
            await trio.sleep_forever()
        finally:
            for stream in networks.streams:
                stream.socket.close()

    async with trio.open_nursery() as connections:
        connections.start_soon(end)
        async with trio.open_nursery() as accepting:
            accepting.start_soon(accept, sock, admit)
            await stop.wait()
            accepting.cancel_scope.cancel()
        await context.terminated.set()
        with trio.move_on_after(config.graceful_timeout):
            while networks.streams:
                await gone.park()
        connections.cancel_scope.cancel()


async def _encrypted(stream: _PatientStream, encryption: Encryption) -> trio.abc.Stream | None:
    """The stream of the connection; None if the peer was refused because it is encrypted, or not, unlike the listener.

    Raises:
        OSError: It sent nothing in time, has disconnected, or the handshake failed.
    """
    tls, statistics = encryption.current(), encryption.statistics
    if not await speaks_alike(
        stream.raw, "http", encrypted=tls is not None, timeout_s=encryption.handshake_timeout_s, statistics=statistics
    ):
        return None
    if tls is None:
        return stream
    secure = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
    await shake_hands(secure.do_handshake, timeout_s=encryption.handshake_timeout_s, statistics=statistics)
    return secure
