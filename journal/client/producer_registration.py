"""The registration of a client's producer at the server, repeated while the server refuses it for the moment.

What is appended meanwhile waits in `journal.client.appends`. Nothing here is called for each append.
"""

from __future__ import annotations

from collections.abc import Callable

from journal.client.connection import Connection
from journal.protocol import Op, RemoteProtocolError, decode_reply, encode
from journal.protocol.errors import ConnectionLostError, is_retriable
from journal.protocol.messages import ProducerOpenRequest
from shards.back_off import BackOff
from shards.errors import StorageError
from shards.model import ProducerIdentity


class ProducerRegistration:
    """Asks the server for the identity of one producer; at most one request is under way.

    Args:
        producer_name: Opening the same name elsewhere fences this client.
        after: Calls a function after a number of seconds, unless the client is closed first.
        backoff: Delays before the next attempt after a temporary refusal.
        on_registered: Called with the identity.
        on_refused: Called with an error that another attempt would not change.

    Attributes:
        refusal: The error of the last attempt, if the server refused it for the moment.
    """

    def __init__(
        self,
        producer_name: str,
        *,
        after: Callable[[float, Callable[[], None]], None],
        backoff: BackOff,
        on_registered: Callable[[ProducerIdentity], None],
        on_refused: Callable[[StorageError], None],
    ) -> None:
        self.producer_name = producer_name
        self.refusal: StorageError | None = None
        self._after = after
        self._backoff = backoff
        self._on_registered = on_registered
        self._on_refused = on_refused
        self._attempts = 0
        # The connection on which a request or the pause before the next one is under way.
        self._connection: Connection | None = None

    def request(self, connection: Connection) -> None:
        """Send a request, unless one is under way; after a pause the connection is woken, to call this again."""
        if self._connection is not None:
            return
        self._connection = connection

        def done(error: StorageError | None, body: bytes | memoryview) -> None:
            self._answered(connection, error, body)

        connection.call_nowait(Op.PRODUCER_OPEN, encode(ProducerOpenRequest(self.producer_name)), done)

    def disconnected(self) -> None:
        """Note the end of the connection: the next request is sent on another one."""
        self._connection = None

    def _answered(self, connection: Connection, error: StorageError | None, body: bytes | memoryview) -> None:
        if self._connection is not connection:
            return
        if error is not None and is_retriable(error) and not isinstance(error, ConnectionLostError):
            self.refusal = error
            self._after(self._backoff.delay_s(self._attempts), lambda: self._pause_ended(connection))
            self._attempts += 1
            return
        self._connection = None
        if isinstance(error, ConnectionLostError):
            return
        if error is None:
            try:
                identity: ProducerIdentity = decode_reply(Op.PRODUCER_OPEN, body)
            except RemoteProtocolError as fault:
                error = fault
        if error is not None:
            self._on_refused(error)
            return
        self._attempts = 0
        self.refusal = None
        self._on_registered(identity)

    def _pause_ended(self, connection: Connection) -> None:
        # On another connection it is registered anew: two registrations under way would fence each other.
        if self._connection is connection:
            self._connection = None
            connection.wake()
