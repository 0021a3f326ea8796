"""The handles of the shards that a client appends to: asked for on each connection, again after a pause if refused.

Nothing here is called for an append to a shard that has its handle.
"""

from __future__ import annotations

from collections.abc import Callable

from journal.client.connection import Connection
from journal.client.shard_appends import ShardAppends
from journal.protocol import Op, RemoteProtocolError, decode_reply, encode
from journal.protocol.errors import is_retriable
from journal.protocol.messages import OpenShardRequest
from shards.back_off import BackOff
from shards.errors import LimitExceededError, StorageError


class ShardHandles:
    """Opens shards at the server, and pauses those whose requests it refuses for the moment.

    Args:
        after: Calls a function after a number of seconds, unless the client is closed first.
        backoff: Delays before the next attempt after a temporary refusal.
        on_ready: Called with a shard that has its handle, or whose pause has ended.
        on_refused: Called with a shard that cannot be opened, and with the error.

    Attributes:
        connection: The connection at present. What was asked on an earlier one is not answered any more.
        make_room: Called when the server allows no more open shards at the connection; closes some that are not in use.
            Returns whether there were any.
    """

    def __init__(
        self,
        *,
        after: Callable[[float, Callable[[], None]], None],
        backoff: BackOff,
        on_ready: Callable[[ShardAppends], None],
        on_refused: Callable[[ShardAppends, StorageError], None],
    ) -> None:
        self.connection: Connection | None = None
        self._after = after
        self._backoff = backoff
        self._on_ready = on_ready
        self._on_refused = on_refused
        self.make_room: Callable[[Connection], bool] = lambda _connection: False

    def open(self, connection: Connection, shard: ShardAppends) -> None:
        """Ask for the handle of a shard, unless that is under way or the shard is paused."""
        if shard.is_opening or shard.is_waiting:
            return
        shard.is_opening = True

        def done(error: StorageError | None, body: bytes | memoryview) -> None:
            if self.connection is not connection:
                return
            shard.is_opening = False
            if error is None:
                try:
                    shard.handle = decode_reply(Op.OPEN_SHARD, body).handle
                except RemoteProtocolError as fault:
                    error = fault
            if error is None:
                self._resume(shard)
            elif isinstance(error, LimitExceededError):
                if self.make_room(connection):
                    self.open(connection, shard)
                else:
                    # All are in use: some will not be soon.
                    self.pause(shard, error)
            elif is_retriable(error):
                self.pause(shard, error)
            else:
                self._on_refused(shard, error)

        connection.call_nowait(Op.OPEN_SHARD, encode(OpenShardRequest(shard.name)), done)

    def pause(self, shard: ShardAppends, refusal: StorageError) -> None:
        """Send nothing of a shard for a while, longer each time that the server refuses."""
        shard.refusal = refusal
        connection = self.connection
        if shard.is_waiting or connection is None:
            return
        shard.is_waiting = True
        delay_s = self._backoff.delay_s(shard.attempts)
        shard.attempts += 1

        def again() -> None:
            if self.connection is connection:
                shard.is_waiting = False
                self._resume(shard)

        self._after(delay_s, again)

    def _resume(self, shard: ShardAppends) -> None:
        if shard.window is not None:
            shard.window.resume()
        self._on_ready(shard)
