"""One client of the JSON sub-protocol: messages in, replies and pushes out, and the limits of both.

The requests are carried out by `journal.server.json_protocol.operations`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from journal.access.authorization import EVERYBODY, Principal, RevokedPrincipal
from journal.access.quotas import Meter
from journal.engine import Engine
from journal.protocol.errors import RemoteProtocolError
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
from journal.server.output import Output
from journal.server.pushing import Pushing
from journal.server.statistics import ServerStatistics
from shards.errors import StorageError
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


class JsonConnection:
    """State of one connection.

    Attributes:
        peer: Address of the client, ``HOST:PORT``.
        client: Name that the client chose.
        certificate_name: Common name of the client's certificate; empty without one.
        principal: The authenticated principal; no request is carried out before hello.
        greeted: hello was accepted.
        refusal: Why hello was refused, or why the client was disconnected later.
        meter: Its quotas; None if it has none.
        output: The outgoing messages.
        pushing: Its tails.
        pushes: Encodes the pushes of its tails.
        inflight_bytes: Appended bytes that wait for their commit.
        receiving: Cancelling it ends the receiving.
        nursery: Runs its tasks.
        polls: Waits that end when the server stops.
    """

    def __init__(
        self,
        number: int,
        engine: Engine,
        operations: Operations,
        output: Output,
        statistics: ServerStatistics,
        nursery: trio.Nursery,
        report: Callable[[Exception, int], None],
        *,
        peer: str,
        certificate_name: str = "",
        on_greeted: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.peer = peer
        self.certificate_name = certificate_name
        self.nursery = nursery
        self.engine = engine
        self.output = output
        self.statistics = statistics
        self.pushes = JsonPushes(output, operations.opener)
        self.pushing = Pushing(output, self.pushes)
        self.client = ""
        self.principal: Principal = EVERYBODY
        self.meter: Meter | None = None
        self.refusal: StorageError | None = None
        self.greeted = False
        self.inflight_bytes = 0
        self.polls: set[trio.CancelScope] = set()
        self.receiving = trio.CancelScope()
        self._operations = operations
        self._report = report
        self._on_greeted = on_greeted
        self._requests = 0
        self._progress = trio.lowlevel.ParkingLot()
        self._was_refused = False

    def greet(self, client: str, principal: Principal, meter: Meter | None = None) -> None:
        """Note that hello was accepted."""
        self.greeted = True
        self.client = client
        self.principal = principal
        self.meter = self.pushing.meter = meter
        self._on_greeted()

    def renew(self, principal: Principal) -> None:
        """Continue as the same principal with other rights."""
        self.principal = principal

    def revoke(self, error: StorageError) -> None:
        """Refuse the client any further use: send it the reason and end the connection."""
        if self.refusal is not None:
            return
        self.refusal = error
        # The connection ends after the error was sent; until then the client has no rights.
        self.renew(RevokedPrincipal(self.principal.name))
        self.pushing.close()
        self.tell(error)
        self.receiving.cancel()

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
        try:
            request = await self._decode(message)
            request_id = request.id
            self._check_greeted(request)
            # Requests begin in order, one after the other, so appends keep their order.
            result = await self._operations.handle(self, request)
        except Exception as error:  # noqa: BLE001 it ends this request only
            if isinstance(error, BadRequestError):
                request_id = error.id
            self._refuse(request_id, error)
            if not self.greeted:
                self._was_refused = True
                self.refusal = error if isinstance(error, StorageError) else None
                self.receiving.cancel()
            return
        if isinstance(result, Later):
            self._requests += 1
            self.nursery.start_soon(self._finish, request_id, result.result)
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

    async def _finish(self, request_id: RequestId | None, result: Awaitable[object]) -> None:
        try:
            found = await result
            if request_id is not None:
                self.send(encode_result(request_id, found))
        except Exception as error:  # noqa: BLE001 it ends this request only
            self._refuse(request_id, error)
        finally:
            self._requests -= 1
            self.made_progress()

    def _refuse(self, request_id: RequestId | None, error: Exception) -> None:
        if isinstance(error, StorageError):
            self.statistics.count_error(error)
        else:
            self._report(error, self.number)
        self.send(encode_error(request_id, error))

    def send(self, message: bytes) -> None:
        """Send one message."""
        self.output.send((message,), len(message))

    def tell(self, error: StorageError) -> None:
        """Send the reason for the end of the connection, unless the reply to a refused hello was it."""
        if not self._was_refused:
            self.send(encode_error(None, error))

    async def wait_for_room(self) -> None:
        """Return when more may be received: the connection's own limits and the engine's budgets allow it."""
        limit = self.engine.config.limits.max_inflight_bytes_per_connection
        await self.engine.wait_for_room()
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
