"""Listeners in the test's own process, with a handler that echoes, and certificates for them."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import structlog
import trio
import trustme
from structlog.testing import LogCapture
from structlog.typing import EventDict
from trio_websocket import WebSocketConnection, wrap_client_stream

from broker_adapter.mqtt.transport.listeners import Handler, ListenerLimits, Listeners, Peer
from journal.access.certificates import server_context
from journal.net.origins import Origins
from tests.patience import PATIENCE_S

AUTHORITY = trustme.CA()


@attrs.define
class Files:
    """PEM files of one certificate."""

    certificate: str
    key: str
    authority: str


def write_certificate(directory: str, *, authority: trustme.CA = AUTHORITY, name: str = "broker") -> Files:
    """A certificate for the loopback, in files."""
    issued = authority.issue_cert("127.0.0.1", "localhost")
    files = Files(*(f"{directory}/{name}.{kind}.pem" for kind in ("certificate", "key", "authority")))
    with open(files.certificate, "wb") as file:
        file.writelines(blob.bytes() for blob in issued.cert_chain_pems)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.authority)
    return files


def client_context(authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    """TLS of a client that trusts the authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def echo(stream: trio.abc.Stream, peer: Peer) -> None:
    """Send everything back until the peer ends; `quit` ends it from this side."""
    while data := await stream.receive_some():
        await stream.send_all(data)
        if data.endswith(b"quit"):
            return


@contextmanager
def logged() -> Iterator[list[EventDict]]:
    """What is logged in the block, at any level: the output of logs is set for the process by an earlier test."""
    before = structlog.get_config()
    capture = LogCapture()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
    try:
        yield capture.entries
    finally:
        structlog.configure(**before)


@attrs.define
class Served:
    """Running listeners and where they are."""

    listeners: Listeners
    ports: dict[str, int]

    async def connect(self, name: str = "mqtt") -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.ports[name])

    async def connect_tls(
        self, name: str = "mqtts", context: ssl.SSLContext | None = None
    ) -> trio.SSLStream[trio.SocketStream]:
        stream = trio.SSLStream(
            await self.connect(name), client_context() if context is None else context, server_hostname="127.0.0.1"
        )
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    @asynccontextmanager
    async def websocket(
        self, name: str = "websocket", subprotocols: Iterable[str] = ("mqtt",)
    ) -> AsyncIterator[WebSocketConnection]:
        """A WebSocket client for the length of the block."""
        stream = await (self.connect_tls(name) if name == "websockets" else self.connect(name))
        async with websocket_over(stream, subprotocols) as client:
            yield client


@asynccontextmanager
async def websocket_over(
    stream: trio.abc.Stream, subprotocols: Iterable[str] = ("mqtt",)
) -> AsyncIterator[WebSocketConnection]:
    """A WebSocket over a stream that is closed at the end in any case, which the library leaves open in some."""
    async with stream, trio.open_nursery() as nursery:
        async with await wrap_client_stream(
            nursery, stream, "127.0.0.1", "/mqtt", subprotocols=list(subprotocols)
        ) as client:
            yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(
    handler: Handler = echo,
    *,
    names: Iterable[str] = ("mqtt",),
    limits: ListenerLimits | None = None,
    tls: ssl.SSLContext | None = None,
    origins: Origins | None = None,
) -> AsyncIterator[Served]:
    """Serve for the length of the block."""
    sockets = {}
    for name in names:
        sockets[name] = socket.create_server(("127.0.0.1", 0))
    listeners = Listeners(handler, limits or ListenerLimits(), tls, origins)
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(listeners.run, sockets)
                yield Served(listeners, {name: sock.getsockname()[1] for name, sock in sockets.items()})
                nursery.cancel_scope.cancel()
    finally:
        for sock in sockets.values():
            sock.close()


def tls_of(files: Files, *, clients: bool = False) -> ssl.SSLContext:
    """The broker's TLS out of those files."""
    return server_context(files.certificate, files.key, files.authority if clients else "")
