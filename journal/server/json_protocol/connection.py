"""One client of the JSON sub-protocol: messages in, replies and pushes out, and the limits of both.

The requests are carried out by `journal.server.json_protocol.operations`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from journal.protocol.errors import RemoteProtocolError
from journal.server.client_connection import Accepted, ClientConnection
from journal.server.heartbeat import Heartbeat
from journal.server.json_protocol.messages import (
    AnyRequest,
    BadRequestError,
    Hello,
    RequestId,
    decode_request,
    encode_error,
    encode_result,
)
from journal.server.json_protocol.pushes import JsonPushes, Opener
from journal.server.pushing import Pushing
from shards.errors import NotOwnerError, StorageError
from shards.segments.chunks import Readable

_REQUESTS_AT_ONCE = 256
_ON_THE_LOOP_CHARACTERS = 64 * 1024


class Later:
    """The rest of a request that has to wait, while later requests are carried out."""

    __slots__ = ("result",)

    def __init__(self, result: Awaitable[object]) -> None:
        self.result = result


class Operations(Protocol):
    """Carries out the requests of a connection.

    Attributes:
        opener: Decodes batches.
        converting: Limits conversions in threads, for all connections together.
    """

    opener: Opener
    converting: trio.CapacityLimiter

    async def handle(self, connection: JsonConnection, request: AnyRequest) -> object:
        """Carry out a request; returns the result, or `Later`."""

    def note_refused(self, connection: JsonConnection, act: str, error: Exception) -> None:
        """Record that a request was refused for lack of rights, if that is the error."""


class JsonCarrier:
    """Sends each waiting message as one text message."""

    keeps_frames_whole = True

    def __init__(self, websocket: WebSocketConnection) -> None:
        self._websocket = websocket

    def send_nowait(self, buffers: list[Readable]) -> int:
        """Return 0: a message has to be sent by the writer task."""
        return 0

    async def send_some(self, buffers: list[Readable]) -> int:
        """Send the first of the buffers."""
        try:
            await self._websocket.send_message(str(buffers[0], "utf-8"))
        except ConnectionClosed as error:
            raise BrokenPipeError("the WebSocket is closed") from error
        return len(buffers[0])


class JsonConnection(ClientConnection):
    """State of one connection. No request is carried out before hello.

    Attributes:
        pushes: Encodes the pushes of its tails.
    """

    def __init__(self, accepted: Accepted, operations: Operations) -> None:
        self.pushes = JsonPushes(accepted.output, operations.opener)
        super().__init__(accepted, Pushing(accepted.output, self.pushes))
        self._operations = operations

    def grant_again(self) -> None:
        """Do nothing: rights and quotas are checked for every request, and not kept here."""

    # Receiving

    async def receive(self, heartbeat: Heartbeat, hello_timeout_s: float) -> None:
        """Receive messages until the peer closes or breaks the rules.

        Raises:
            RemoteProtocolError: The first message was not hello, or did not come in time.
        """
        with trio.move_on_after(hello_timeout_s) as greeting:
            while True:
                await self.wait_for_room()
                try:
                    message = await heartbeat.get_message()
                except ConnectionClosed:
                    return
                # It has arrived; the time for processing it does not count.
                greeting.deadline = float("inf")
                await self._take(message)
        raise RemoteProtocolError(f"no hello within {hello_timeout_s:.0f} s")

    async def _take(self, message: str | bytes) -> None:
        if self.meter is not None:
            self.meter.spend(1, len(message))
        request_id: RequestId | None = None
        act = ""
        try:
            request = await self._decode(message)
            request_id, act = request.id, str(request.__struct_config__.tag)
            self._check_greeted(request)
            # Requests begin in order, one after the other, so appends keep their order.
            result = await self._operations.handle(self, request)
        except Exception as error:  # noqa: BLE001 it ends this request only
            if isinstance(error, BadRequestError):
                request_id = error.id
            self._refuse(request_id, act, error)
            if not self.greeted:
                self._was_refused = True
                self.refusal = error if isinstance(error, StorageError) else None
                self.receiving.cancel()
            return
        if isinstance(result, Later):
            self._requests += 1
            self.nursery.start_soon(self._finish, request_id, act, result.result)
        elif request_id is not None:
            self.send(encode_result(request_id, result))

    def _check_greeted(self, request: AnyRequest) -> None:
        if not self.greeted and not isinstance(request, Hello):
            raise RemoteProtocolError(f"the first message must be hello, not {request.__struct_config__.tag}")

    async def _decode(self, message: str | bytes) -> AnyRequest:
        if isinstance(message, bytes):
            raise BadRequestError("a binary message; this sub-protocol uses JSON in text messages", None)
        if len(message) <= _ON_THE_LOOP_CHARACTERS:
            return decode_request(message)
        return await trio.to_thread.run_sync(decode_request, message, limiter=self._operations.converting)

    async def _finish(self, request_id: RequestId | None, act: str, result: Awaitable[object]) -> None:
        try:
            found = await result
            if request_id is not None:
                self.send(encode_result(request_id, found))
        except Exception as error:  # noqa: BLE001 it ends this request only
            self._refuse(request_id, act, error)
        finally:
            self._requests -= 1
            self.made_progress()

    def _refuse(self, request_id: RequestId | None, act: str, error: Exception) -> None:
        if isinstance(error, NotOwnerError):
            # Whether it was carried out is known to the next owner alone, as after a broken connection.
            self.output.abandon()
            return
        if isinstance(error, StorageError):
            self.statistics.count_error(error)
            self._operations.note_refused(self, act, error)
        else:
            self._report(error, self.number)
        self.send(encode_error(request_id, error))

    def send(self, message: bytes) -> None:
        """Send one message."""
        self.output.send((message,), len(message))

    def tell(self, error: StorageError) -> None:
        if not self._was_refused:
            self.send(encode_error(None, error))

    async def wait_for_room(self) -> None:
        """Return when more may be received: the connection's own limits allow it. An append waits for the engine's."""
        limit = self.engine.config.limits.max_inflight_bytes_per_connection
        await self.output.wait_for_room()
        if self.meter is not None:
            await self.meter.wait()
        while self.inflight_bytes > limit or self._requests >= _REQUESTS_AT_ONCE:
            await self._progress.park()

    def made_progress(self) -> None:
        """Wake the receiver: an append was committed or a wait has ended."""
        self._progress.unpark_all()

    async def settle(self) -> None:
        """After the last receive: return when every request is answered. Reads do not wait for records any more."""
        for poll in self.polls:
            poll.cancel()
        while self._requests:
            await self._progress.park()

    def close(self) -> None:
        """End the tails: the client has disconnected."""
        self.pushing.close()
        self.output.abandon()
