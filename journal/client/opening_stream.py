"""The stream under a WebSocket during its opening handshake: an answer that is not a WebSocket is noticed at once.

The WebSocket library waits forever if the answer is not HTTP, and fails in another task if it is a refusal.
"""

from __future__ import annotations

from typing import Final

import trio

_OPENED: Final = b"HTTP/1.1 101"
_MOST_BYTES: Final = 4096
_REST_S: Final = 0.2


class OpeningStream(trio.abc.Stream):
    """Passes all bytes on, once the first ones are the answer of a WebSocket server.

    Args:
        stream: A connected stream.

    Attributes:
        first: The bytes that arrived instead of a WebSocket answer; empty if there were none.
        until_refused: Cancelled when it is certain that there will be no WebSocket.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.first = b""
        self.until_refused = trio.CancelScope()
        self._stream = stream
        self._is_open = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive.

        Raises:
            BrokenResourceError: The connection has broken, or there is no WebSocket.
        """
        if self._is_open:
            return await self._stream.receive_some(max_bytes)
        try:
            data = await self._begin()
        except BaseException:
            self.until_refused.cancel()
            raise
        if data is None:
            self.until_refused.cancel()
            raise trio.BrokenResourceError("no WebSocket was opened")
        self._is_open = True
        return data

    async def _begin(self) -> bytes | None:
        data = b""
        while len(data) < len(_OPENED) and _OPENED.startswith(data[: len(_OPENED)]):
            more = await self._stream.receive_some()
            if not more:
                break
            data += more
        if data.startswith(_OPENED):
            return data
        self.first = data
        # The rest of the answer contains the reason, if it arrives.
        with trio.move_on_after(_REST_S):
            while len(self.first) < _MOST_BYTES:
                more = await self._stream.receive_some()
                if not more:
                    break
                self.first += more
        return None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send.

        Raises:
            BrokenResourceError: The connection has broken.
        """
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError:
            if not self._is_open:
                self.until_refused.cancel()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until something can be sent."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the stream below."""
        await self._stream.aclose()
