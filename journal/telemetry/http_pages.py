"""A small HTTP/1.1 server for programs that are installed without a web framework: health, metrics, a few pages.

Peers are not trusted: their number, the time of each request and its size are limited. When there are too many, the one
that has waited longest without a request is closed for the new one, so that idle connections keep no one out. The
callers provide the pages, and decide which clients may see them.
"""

from __future__ import annotations

import base64
import binascii
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Final

import attrs
import h11
import structlog
import trio

from journal.net.listening import accept, linger, prepare
from journal.net.protocol_sniffing import is_binary

MAX_CONNECTIONS: Final = 64
_MAX_HEAD_BYTES: Final = 16 * 1024
_RECEIVED_AT_ONCE: Final = 16 * 1024
REQUEST_S: Final = 10.0
_IDLE_S: Final = 60.0
_BUSY_AT_ONCE: Final = 4 * MAX_CONNECTIONS
"""Connections at most, with those that are being closed for others."""
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

TEXT: Final = "text/plain; charset=utf-8"

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal.http")


@attrs.frozen(slots=True)
class Request:
    """One request.

    Attributes:
        path: Path without the part after a question mark.
        authorization: The header of this name, empty without one.
        host: Address of the peer, without its port.
        query: The part after the question mark, empty without one.
        headers: All headers, by their names in lower case; of repeated ones the last.
        body: The body; empty if the page takes none.
    """

    path: str
    authorization: str
    host: str
    query: str = ""
    headers: Mapping[str, str] = attrs.Factory(dict)
    body: bytes = b""

    @property
    def credentials(self) -> tuple[str | None, bytes | None]:
        """User and password of HTTP Basic; or no user and a bearer token; (None, None) if there is nothing valid."""
        scheme, _, encoded = self.authorization.partition(" ")
        if scheme.lower() == "bearer" and encoded.strip():
            return None, encoded.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "basic":
            return None, None
        try:
            user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
            return (user.decode(), password) if colon else (None, None)
        except (binascii.Error, UnicodeDecodeError):
            return None, None


@attrs.frozen(slots=True)
class Reply:
    """An answer.

    Attributes:
        body: The body.
        status: HTTP status.
        content_type: Content type of the body.
        challenge: Value of `WWW-Authenticate`, where credentials are missing.
        headers: Other headers, by name.
    """

    body: bytes
    status: int = 200
    content_type: str = TEXT
    challenge: str = ""
    headers: Mapping[str, str] = attrs.Factory(dict)


Page = Callable[[Request], Awaitable[Reply]]


@attrs.frozen(slots=True)
class Resource:
    """The methods of a path that accepts more than GET.

    Attributes:
        methods: The function for each method, in capitals; HEAD is answered where GET is.
        max_body_bytes: The largest accepted body.
    """

    methods: Mapping[str, Page]
    max_body_bytes: int

    @property
    def allowed(self) -> list[str]:
        """The supported methods."""
        return [method for name in self.methods for method in ((name, "HEAD") if name == "GET" else (name,))]


def health_reply(reasons: list[str]) -> Reply:
    """The answer of `/readyz`: ready without reasons, otherwise 503 with all reasons in one line."""
    if not reasons:
        return Reply(b"ready\n")
    return Reply(f"not ready: {'; '.join(reasons)}\n".encode(), 503)


class HttpPages:
    """Serves pages.

    Args:
        pages: Pages by path; a page without methods answers GET and HEAD.
        tls: Returns the TLS context for new connections; None for unencrypted ones.
    """

    def __init__(
        self, pages: Mapping[str, Page | Resource], tls: Callable[[], ssl.SSLContext | None] = lambda: None
    ) -> None:
        self._pages = {
            path: page if isinstance(page, Resource) else Resource({"GET": page}, 0) for path, page in pages.items()
        }
        self._tls = tls
        self._connection_count = 0
        self._waiting: dict[trio.CancelScope, None] = {}
        self._is_full = False

    async def serve(self, sock: socket.socket) -> None:
        """Answer on a listening socket until cancelled."""
        async with trio.open_nursery() as connections:
            await accept(sock, partial(self._admit, connections))

    def _admit(self, connections: trio.Nursery, sock: socket.socket, address: str) -> bool:
        if self._connection_count >= MAX_CONNECTIONS:
            idle = next(iter(self._waiting), None)
            if idle is None or self._connection_count >= _BUSY_AT_ONCE:
                if not self._is_full:
                    # Logged once until there is room again, so that a flood of connections does not flood the log.
                    log.warning("connections refused", peer=address, allowed=MAX_CONNECTIONS)
                self._is_full = True
                return False
            del self._waiting[idle]
            idle.cancel()
        else:
            self._is_full = False
        self._connection_count += 1
        connections.start_soon(self._contained, sock, address.rpartition(":")[0])
        return True

    async def _contained(self, sock: socket.socket, host: str) -> None:
        try:
            prepare(sock)
            await self._converse(sock, host)
            await linger(sock)
        except _GONE as error:
            log.debug("connection broken", peer=host, reason=str(error))
        except Exception:
            log.exception("unexpected error", peer=host)
        finally:
            trio.lowlevel.notify_closing(sock)
            sock.close()
            self._connection_count -= 1

    async def _converse(self, sock: socket.socket, host: str) -> None:
        stream = await self._stream_over(sock)
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        patience_s = REQUEST_S
        while True:
            try:
                asked = None
                with self._wait_for_peer(patience_s):
                    asked = await self._next_request(http, stream)
                if asked is None:
                    return
                reply = await self._answer(*asked, host)
                is_head = asked[0].method == b"HEAD"
            except h11.RemoteProtocolError as error:
                log.info("request refused", peer=host, reason=str(error).partition(":")[0])
                # The part after the colon is content of the request, and need not be sent back.
                reply = Reply(f"{str(error).partition(':')[0]}\n".encode(), error.error_status_hint)
                is_head = False
            with trio.fail_after(REQUEST_S):
                await stream.send_all(_encoded(http, reply, is_head=is_head))
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()
            patience_s = _IDLE_S

    async def _stream_over(self, sock: socket.socket) -> trio.abc.Stream:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        context = self._tls()
        if context is None:
            return stream
        encrypted = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        is_done = False
        with self._wait_for_peer(REQUEST_S):
            await encrypted.do_handshake()
            is_done = True
        if not is_done:
            raise trio.BrokenResourceError("the TLS handshake took too long")
        return encrypted

    @contextmanager
    def _wait_for_peer(self, patience_s: float) -> Iterator[None]:
        """Leave the block after this time, or when another peer needs the place."""
        with trio.move_on_after(patience_s) as scope:
            self._waiting[scope] = None
            try:
                yield
            finally:
                self._waiting.pop(scope, None)

    async def _answer(self, asked: h11.Request, body: bytes, host: str) -> Reply:
        path, query = _target_of(asked)
        resource = self._pages.get(path)
        if resource is None:
            return Reply(f"there is no such page; pages are {', '.join(self._pages)}\n".encode(), 404)
        method = asked.method.decode("ascii")
        page = resource.methods.get("GET" if method == "HEAD" else method)
        if page is None:
            allowed = resource.allowed
            text = f"only {' and '.join(allowed)} are supported\n".encode()
            return Reply(text, HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(allowed)})
        headers = {name.decode("ascii"): value.decode("ascii", "replace") for name, value in asked.headers}
        return await page(Request(path, headers.get("authorization", ""), host, query, headers, body))

    async def _next_request(self, http: h11.Connection, stream: trio.abc.Stream) -> tuple[h11.Request, bytes] | None:
        """The next request and its body, completely received; None if the peer has closed the connection."""
        request: h11.Request | None = None
        body = bytearray()
        max_body_bytes = 0
        is_new = True
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                if http.they_are_waiting_for_100_continue:
                    await stream.send_all(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                data = bytes(await stream.receive_some(_RECEIVED_AT_ONCE))
                if is_new and is_binary(data):
                    # It would wait for the end of a line that never comes, and the peer for an answer.
                    raise h11.RemoteProtocolError("this port speaks HTTP, and these bytes are none")
                is_new = False
                http.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
                resource = self._pages.get(_target_of(event)[0])
                max_body_bytes = 0 if resource is None else resource.max_body_bytes
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > max(max_body_bytes, _MAX_HEAD_BYTES):
                    most = (
                        f"the body has more than {max_body_bytes} bytes"
                        if max_body_bytes
                        else "this page takes no body"
                    )
                    raise h11.RemoteProtocolError(most, error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return request, bytes(body)
            else:
                return None


def _target_of(asked: h11.Request) -> tuple[str, str]:
    """Path and query."""
    path, _, query = asked.target.partition(b"?")
    return path.decode("ascii", "replace"), query.decode("ascii", "replace")


def _encoded(http: h11.Connection, reply: Reply, *, is_head: bool) -> bytes:
    headers = [
        ("Content-Type", reply.content_type),
        ("Content-Length", str(len(reply.body))),
        ("Cache-Control", "no-store"),
        *reply.headers.items(),
    ]
    if reply.challenge:
        headers.append(("WWW-Authenticate", reply.challenge))
    if http.our_state is h11.ERROR:
        # This side ended the connection; h11 sends nothing any more.
        return b""
    parts = [
        http.send(
            h11.Response(status_code=reply.status, headers=headers, reason=HTTPStatus(reply.status).phrase.encode())
        ),
        b"" if is_head else http.send(h11.Data(data=reply.body)),
        http.send(h11.EndOfMessage()),
    ]
    return b"".join(part for part in parts if part)
