"""Requests to web services, with bounds: httpx with the settings that all of its users here need.

It is imported only where a request is sent: httpx is an optional package.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import aclosing
from typing import Self

import attrs
import httpx
import trio


@attrs.frozen(slots=True)
class Received:
    """A response.

    Attributes:
        status: 100 to 599.
        headers: Its headers; names in any case.
        body: The beginning of the body, as it was sent, not decoded.
        is_cut: Whether the body is longer.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool

    @property
    def is_encoded(self) -> bool:
        """Whether the body is compressed, although that was not asked for: its decoded size has no limit."""
        return self.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity")


class RequestBody(httpx.AsyncByteStream):
    """Bytes that are sent once, in one piece.

    The stream of httpx is an async generator. Where the peer has closed the connection, httpcore abandons it in the
    middle and reads the response: trio then warns of a generator that the garbage collector has to close.
    """

    def __init__(self, body: bytes) -> None:
        self._left = [body]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


def bounded_client(tls: ssl.SSLContext | bool, max_connections: int) -> httpx.AsyncClient:
    """A client for one service. Calls have no time limit of their own: the caller has one for all of a call."""
    # Proxies and passwords are not taken from the environment: only the settings decide what is sent where.
    return httpx.AsyncClient(
        verify=tls,
        timeout=None,  # noqa: S113 - see above
        trust_env=False,
        follow_redirects=False,
        # httpx would decode a compressed response without a limit, and 16 KB of zstd become 1 GiB.
        headers={"Accept-Encoding": "identity"},
        limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
    )


async def exchange(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    max_bytes: int,
) -> Received:
    """Send a request and receive its response.

    Args:
        client: A client of `bounded_client`.
        method: The method.
        url: The address.
        headers: Headers of the request.
        body: Body of the request.
        max_bytes: Bytes of the body of the response that are kept; more are not received.

    Raises:
        httpx.HTTPError: There was no complete response.
    """
    request = client.build_request(method, url, headers=headers, content=body or None)
    request.stream = RequestBody(body)
    response = await client.send(request, stream=True)
    async with aclosing(response):
        received = await _beginning(response, max_bytes)
    # A response and its stream refer to each other, and the request to its body: whole bodies would stay in memory
    # until the next garbage collection.
    response.stream = httpx.ByteStream(b"")
    return Received(response.status_code, response.headers, received[:max_bytes], len(received) > max_bytes)


async def _beginning(response: httpx.Response, max_bytes: int) -> bytes:
    """The body; if it is too long, only its beginning. It is read to the end, so that its connection can be reused."""
    body = b""
    with trio.CancelScope() as scope:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                # The streams of httpx are async generators in each other. Leaving the loop would leave the inner ones
                # to the garbage collector; cancelled, all of them end now.
                scope.cancel()
    return body
