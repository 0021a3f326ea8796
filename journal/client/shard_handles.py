"""The handles of the shards that a client appends to: asked for on each connection, again after a pause if refused.

Nothing here is called for an append to a shard that has its handle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

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
        # The queue for handles: one function for each shard or read that waits for one, the oldest first.
        self._short: deque[Callable[[], None]] = deque()
        self._is_looking = False
        self._looks = 0

    @property
    def is_short(self) -> bool:
        """Whether a shard or a read waits for a handle.

        While one does, a shard that has a handle sends no further batch before those in flight are answered, and then
        calls `give_way`.
        """
        return bool(self._short)

    def disconnected(self) -> None:
        """Note the end of the connection, and with it of its handles: shards and reads that wait for one stop waiting.

        They ask for a handle again on the next connection.
        """
        self.connection = None
        waiting, self._short = self._short, deque()
        for go_on in waiting:
            go_on()

    def wait_for_one(self, go_on: Callable[[], None], *, again: bool) -> None:
        """Join the queue for handles.

        Args:
            go_on: Called when a handle was closed, so that another one can be opened, or when the connection has ended.
            again: The server refused the request that ``go_on`` sent, as another request used the free place. It
                joins at the front of the queue.
        """
        (self._short.appendleft if again else self._short.append)(go_on)
        self._look_later()

    def wait_no_more(self, go_on: Callable[[], None]) -> None:
        """Leave the queue for handles. If ``go_on`` was called already, call the next one in its place."""
        if go_on in self._short:
            self._short.remove(go_on)
        elif self._short:
            self._short.popleft()()

    def share(self) -> None:
        """Close handles that are not in use, and call one function of the queue for each, the oldest first."""
        while self.connection is not None and self._short and self.make_room(self.connection):
            self._short.popleft()()

    def share_soon(self) -> None:
        """Call `share` in a later step of the event loop.

        A read sends its request in the step in which it got its handle; the handle may be closed after that.
        """
        if self._short:
            self._after(0.0, self.share)

    def give_way(self, shard: ShardAppends) -> None:
        """Put a shard at the end of the queue, so that its handle can be closed. Nothing of it may be in flight."""
        self._queue(shard, again=False)
        self.share()

    def _queue(self, shard: ShardAppends, *, again: bool) -> None:
        shard.is_waiting = True
        self.wait_for_one(partial(self._open_again, shard, self.connection), again=again)

    def _open_again(self, shard: ShardAppends, asked_on: Connection | None) -> None:
        connection = self.connection
        if connection is None or connection is not asked_on:
            return
        shard.is_waiting = False
        if shard.handle is not None:
            self._resume(shard)
        elif shard.has_work:
            self.open(connection, shard, in_turn=True)

    def _look_later(self) -> None:
        """Look at the queue after a pause: no call reports that a handle of reads is not in use any more."""
        if self._is_looking:
            return
        self._is_looking = True
        connection = self.connection

        def look() -> None:
            self._is_looking = False
            self._looks += 1
            if self.connection is connection:
                self.share()
                if self._short:
                    # The server may allow another handle, for instance because a shard was deleted. If it does not,
                    # it refuses the request, and the shard or read joins at the front of the queue again.
                    self._short.popleft()()
            if self._short:
                self._look_later()
            else:
                self._looks = 0

        self._after(self._backoff.delay_s(self._looks), look)

    def open(self, connection: Connection, shard: ShardAppends, *, in_turn: bool = False) -> None:
        """Ask for the handle of a shard, unless that is under way or the shard is paused.

        Args:
            connection: The connection at present.
            shard: The shard.
            in_turn: Ask at once, also if others are in the queue for handles.
        """
        if shard.is_opening or shard.is_waiting:
            return
        if self._short and not in_turn:
            self._queue(shard, again=False)
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
                    self.open(connection, shard, in_turn=True)
                else:
                    # All are in use: some will not be soon.
                    shard.refusal = error
                    shard.attempts += 1
                    self._queue(shard, again=shard.attempts > 1)
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
