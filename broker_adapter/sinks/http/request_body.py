"""The body of a request for httpx. Apart from the sink, because httpx is imported only where it is used."""

from __future__ import annotations

from typing import Self

import httpx


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
