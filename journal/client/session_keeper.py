"""Keeps one session with the server open: connects, sends HELLO, and connects again when the session ends.

`journal.client.client` uses the sessions; `journal.client.connection` implements one session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs
import trio

from journal.client.connection import HEARTBEAT_S, Connection, Listener
from journal.client.peer_diagnosis import ClosedWithoutAnswerError
from journal.client.peer_probe import SILENCE_S
from journal.client.transport import Transport
from journal.protocol.errors import AuthenticationError, ConnectionLostError, ServerRestoredError
from journal.protocol.messages import HelloReply
from shards.back_off import BackOff
from shards.errors import FormatVersionError, InvalidRequestError, StorageError

# Another attempt would get the same answer.
_FINAL_ERRORS: Final = (AuthenticationError, FormatVersionError, InvalidRequestError, ServerRestoredError)


@attrs.frozen(slots=True, kw_only=True)
class SessionTimes:
    """How long a client waits for its server.

    Attributes:
        connect_timeout_s: Bound on connecting and HELLO together.
        give_up_after_s: Seconds without a session after which it stops trying, and every operation fails; None for no
            limit.
        first_within_s: The same for the time before the first session, `math.inf` for no limit; None uses
            ``give_up_after_s``.
        ping_interval_s: Silence of the server after which it must answer a PING.
        heartbeat_s: How often something is sent at least. The server closes a connection on which it received nothing
            for three times as long, and other members of groups get the shares of such a client.
    """

    connect_timeout_s: float = 10.0
    give_up_after_s: float | None = None
    first_within_s: float | None = None
    ping_interval_s: float = 15.0
    heartbeat_s: float = HEARTBEAT_S


class Owner(Listener, Protocol):
    """The user of the sessions. No method but `prepare_session` may block or raise."""

    async def prepare_session(self, connection: Connection, hello: HelloReply) -> None:
        """HELLO was answered: do what has to be done before the session may be used.

        Raises:
            ServerRestoredError: The owner does not continue after a restore of the server: this session ends, and no
                other one follows.
            StorageError: This session cannot be used; another one is opened.
        """

    def session_began(self, connection: Connection) -> None:
        """Called when a session is ready."""

    def session_ended(self, reason: StorageError) -> None:
        """Called when it has ended; another one will be opened."""

    def session_refused(self, error: StorageError) -> None:
        """Called when no other session will be opened."""


async def keep_session(
    owner: Owner,
    connect: Callable[[trio.Nursery], Awaitable[Transport]],
    *,
    name: str,
    credentials: Callable[[], dict[str, str] | None] = lambda: None,
    backoff: BackOff,
    times: SessionTimes = SessionTimes(),
    find_other_server: Callable[[], Awaitable[StorageError | None]] | None = None,
    ended: Callable[[StorageError], None] = lambda reason: None,
    read: str = "",
    check: Callable[[HelloReply], None] = lambda hello: None,
) -> None:
    """Keep a session open, one after another, until cancelled or until there is no hope.

    The delay before an attempt doubles with each attempt that failed since the last session. A session that ends about
    as soon as it begins counts as a failure, too; one that lasted longer than the next delay does not, however long the
    server was unavailable before. So a client whose connection is ended soon after an outage, by END_CLIENT for
    example, reconnects at once.

    Args:
        owner: The user of the sessions, and their listener.
        connect: Opens a transport; its background tasks run in the given nursery.
        name: For the server's logs.
        credentials: Returns the credentials for HELLO; called for every session.
        backoff: Delays between attempts.
        times: How long the server may take.
        find_other_server: Called at most once, before the first session, if the peer gives no answer; returns the error
            for a peer that is no server of this protocol.
        ended: Called with the reason when a session has ended or could not be opened, before another one is tried.
        read: See `HelloRequest.read`.
        check: Called with the answer to each HELLO; raises an error of the store if another server has to be tried.
    """
    find = find_other_server
    attempt = short_count = 0
    patience_s = times.give_up_after_s if times.first_within_s is None else times.first_within_s
    last_seen = trio.current_time()
    while True:
        began = False
        reason: StorageError = ConnectionLostError(f"no reply to HELLO within {times.connect_timeout_s:g} s")
        connection: Connection | None = None
        silence = _Silence(find)
        async with trio.open_nursery() as nursery:
            try:
                closed = trio.Event()
                with trio.move_on_after(times.connect_timeout_s) as silence.opening:
                    nursery.start_soon(silence.watch)
                    connection = Connection(await connect(nursery), owner)
                    nursery.start_soon(_run, connection, times, closed)
                    hello = await connection.hello(name, credentials(), heartbeat_s=times.heartbeat_s, read=read)
                    check(hello)
                    began = True
                silence.watching.cancel()
                if began and connection is not None:
                    find = None
                    patience_s = times.give_up_after_s
                    began_at = trio.current_time()
                    await owner.prepare_session(connection, hello)
                    owner.session_began(connection)
                    await closed.wait()
                    reason = connection.reason or reason
                    last_seen = trio.current_time()
                    is_short = last_seen - began_at <= backoff.longest_delay_s(short_count)
                    attempt = short_count = short_count + 1 if is_short else 0
            except StorageError as error:
                reason = error
                if isinstance(error, ConnectionLostError) and connection is not None and connection.reason is not None:
                    # A call only reports that the connection has ended; the connection has the reason. A refusal is
                    # its own reason, also if the server has closed the connection before this task continued.
                    reason = connection.reason
            nursery.cancel_scope.cancel()
        if find is not None and isinstance(reason, ClosedWithoutAnswerError):
            reason, find = await find() or reason, None
        elif silence.has_asked:
            reason, find = silence.found or reason, None
        if began:
            owner.session_ended(reason)
        ended(reason)
        if isinstance(reason, _FINAL_ERRORS):
            owner.session_refused(reason)
            return
        if patience_s is not None and trio.current_time() - last_seen >= patience_s:
            given_up = ConnectionLostError(f"gave up after {patience_s:g} s without a connection; last: {reason}")
            given_up.__cause__ = reason
            owner.session_refused(given_up)
            return
        await trio.sleep(backoff.delay_s(attempt))
        attempt += 1


class _Silence:
    """Finds out what listens at a port that gives no answer while a session is opened."""

    def __init__(self, find: Callable[[], Awaitable[StorageError | None]] | None) -> None:
        self.opening = trio.CancelScope()
        self.watching = trio.CancelScope()
        self.found: StorageError | None = None
        self.has_asked = False
        self._find = find

    async def watch(self) -> None:
        """Wait a little, ask, and end the opening if another program listens."""
        with self.watching:
            await trio.sleep(SILENCE_S)
            if self._find is not None:
                self.has_asked = True
                self.found = await self._find()
                if self.found is not None:
                    self.opening.cancel()


async def _run(connection: Connection, times: SessionTimes, ended: trio.Event) -> None:
    try:
        await connection.run(ping_interval_s=times.ping_interval_s, heartbeat_s=times.heartbeat_s)
    finally:
        ended.set()
