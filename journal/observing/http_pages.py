"""A few pages over HTTP/1.1, for programs that are installed without a web framework: health and metrics.

Peers may be anybody: how many there are, how long each takes and how much it says is bounded. What the pages say, and
who may see them, is known to whoever serves them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final

import attrs
import h11
import structlog
import trio

from journal.listening import accept, linger, prepare

MAX_CONNECTIONS: Final = 64
_MAX_HEAD_BYTES: Final = 16 * 1024
_RECEIVED_AT_ONCE: Final = 16 * 1024
REQUEST_S: Final = 10.0
_IDLE_S: Final = 60.0
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

TEXT: Final = "text/plain; charset=utf-8"

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal.http")


@attrs.frozen(slots=True)
class Request:
    """What is asked for.

    Attributes:
        path: Without what follows a question mark.
        authorization: The header of this name, empty without one.
        host: Where the peer is, without its port.
    """

    path: str
    authorization: str
    host: str


@attrs.frozen(slots=True)
class Reply:
    """An answer.

    Attributes:
        body: For people or for Prometheus.
        status: Of HTTP.
        content_type: Of the body.
        challenge: What `WWW-Authenticate` says, where credentials are missing.
    """

    body: bytes
    status: int = 200
    content_type: str = TEXT
    challenge: str = ""


Page = Callable[[Request], Awaitable[Reply]]


def health_reply(reasons: list[str]) -> Reply:
    """What `/readyz` answers: ready without reasons, and with some 503 and all of them in one line."""
    if not reasons:
        return Reply(b"ready\n")
    return Reply(f"not ready: {'; '.join(reasons)}\n".encode(), 503)


class HttpPages:
    """Serves pages.

    Args:
        pages: By path.
        tls: Gives what connections that come now are encrypted with; None for plain ones.
    """

    def __init__(self, pages: Mapping[str, Page], tls: Callable[[], ssl.SSLContext | None] = lambda: None) -> None:
        self._pages = pages
        self._tls = tls
        self._connection_count = 0

    async def serve(self, sock: socket.socket) -> None:
        """Answer on a listening socket until cancelled."""
        async with trio.open_nursery() as connections:
            await accept(sock, partial(self._admit, connections))

    def _admit(self, connections: trio.Nursery, sock: socket.socket, address: str) -> bool:
        if self._connection_count >= MAX_CONNECTIONS:
            log.warning("connections refused", peer=address, allowed=MAX_CONNECTIONS)
            return False
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
                with trio.move_on_after(patience_s) as waiting:
                    asked = await _next_request(http, stream)
                if waiting.cancelled_caught or asked is None:
                    return
                reply = await self._answer(asked, host)
                is_head = asked.method == b"HEAD"
            except h11.RemoteProtocolError as error:
                # What it found stands behind the colon, and need not be sent back.
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
        with trio.fail_after(REQUEST_S):
            await encrypted.do_handshake()
        return encrypted

    async def _answer(self, asked: h11.Request, host: str) -> Reply:
        path = asked.target.partition(b"?")[0].decode("ascii", "replace")
        page = self._pages.get(path)
        if page is None:
            return Reply(f"there is nothing here; there is {', '.join(self._pages)}\n".encode(), 404)
        if asked.method not in (b"GET", b"HEAD"):
            return Reply(b"only GET and HEAD are answered\n", 405)
        authorization = dict(asked.headers).get(b"authorization", b"").decode("ascii", "replace")
        return await page(Request(path, authorization, host))


async def _next_request(http: h11.Connection, stream: trio.abc.Stream) -> h11.Request | None:
    """The next request, read to its end; None if the peer has ended."""
    request: h11.Request | None = None
    body_bytes = 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(_RECEIVED_AT_ONCE)))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body_bytes += len(event.data)
            if body_bytes > _MAX_HEAD_BYTES:
                raise h11.RemoteProtocolError("nothing is sent here", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage):
            return request
        else:
            return None


def _encoded(http: h11.Connection, reply: Reply, *, is_head: bool) -> bytes:
    headers = [
        ("Content-Type", reply.content_type),
        ("Content-Length", str(len(reply.body))),
        ("Cache-Control", "no-store"),
    ]
    if reply.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", "GET, HEAD"))
    if reply.challenge:
        headers.append(("WWW-Authenticate", reply.challenge))
    if http.our_state is h11.ERROR:
        # It was we who broke off; h11 says nothing any more.
        return b""
    parts = [
        http.send(
            h11.Response(status_code=reply.status, headers=headers, reason=HTTPStatus(reply.status).phrase.encode())
        ),
        b"" if is_head else http.send(h11.Data(data=reply.body)),
        http.send(h11.EndOfMessage()),
    ]
    return b"".join(part for part in parts if part)
