"""One connection to PostgreSQL, used from a thread, that can be shut down at any time. `table` has the commands."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

import attrs
import psycopg
import trio
from psycopg import Connection, pq
from psycopg.conninfo import make_conninfo

from broker_adapter.sinks.postgresql.address import look_up

_Result = TypeVar("_Result")


@attrs.frozen(slots=True)
class _Raised:
    error: Exception


class Line:
    """A connection in autocommit mode; `connect` opens one.

    psycopg's own asynchronous connections need asyncio, so calls run in a thread. A thread is never abandoned: when its
    call is cancelled the socket is shut down, which ends whatever the thread waits for, and then the thread is joined.
    """

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        pgconn.nonblocking = 1
        self._connection: Connection[tuple[Any, ...]] = Connection(pgconn)
        self._connection.autocommit = True
        # Connection poolers before the server may not support prepared statements.
        self._connection.prepare_threshold = None
        # libpq closes its descriptor when a connection is lost, and the number may be reused: so keep a duplicate.
        self._socket = socket.socket(fileno=os.dup(pgconn.socket))
        self._limiter = trio.CapacityLimiter(1)
        self._is_used = False
        self._is_closing = False

    @classmethod
    async def connect(cls, parameters: Mapping[str, str]) -> Self:
        """Connect. If it is cancelled, nothing stays open.

        Raises:
            OSError: No host is known.
            psycopg.OperationalError: There is no server, or it refuses the connection.
        """
        conninfo = make_conninfo(**await look_up(parameters))
        pgconn = pq.PGconn.connect_start(conninfo.encode())
        try:
            await _wait_connected(pgconn)
            return cls(pgconn)
        except BaseException:
            pgconn.finish()
            raise

    async def run(self, work: Callable[[Connection[tuple[Any, ...]]], _Result]) -> _Result:
        """Call ``work(connection)`` in a thread. After a cancellation the connection cannot be used any more."""
        outcome: list[_Result | _Raised] = []

        def call() -> None:
            try:
                outcome.append(work(self._connection))
            except Exception as error:  # noqa: BLE001 - it is raised below, outside the nursery that would wrap it
                outcome.append(_Raised(error))

        async def cut_when_cancelled() -> None:
            try:
                await trio.sleep_forever()
            finally:
                if not outcome:
                    self._cut()

        assert not self._is_used, "one call at a time"
        self._is_used = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut_when_cancelled)
                await trio.to_thread.run_sync(call, limiter=self._limiter)
                nursery.cancel_scope.cancel()
        finally:
            self._is_used = False
            if self._is_closing:
                self.close()
        (result,) = outcome
        if isinstance(result, _Raised):
            raise result.error
        return result

    def close(self) -> None:
        """Close the connection without waiting. A call in progress fails; the rest is closed after it."""
        if self._is_used:
            self._is_closing = True
            self._cut()
            return
        self._socket.close()
        self._connection.close()

    def _cut(self) -> None:
        with suppress(OSError):  # the server has closed it already
            self._socket.shutdown(socket.SHUT_RDWR)


async def _wait_connected(pgconn: pq.abc.PGconn) -> None:
    while (status := pgconn.connect_poll()) != pq.PollingStatus.OK:
        if status == pq.PollingStatus.READING:
            await trio.lowlevel.wait_readable(pgconn.socket)
        elif status == pq.PollingStatus.WRITING:
            await trio.lowlevel.wait_writable(pgconn.socket)
        else:
            raise psycopg.OperationalError(pgconn.get_error_message() + _way_in(pgconn))


def _way_in(pgconn: pq.abc.PGconn) -> str:
    if pgconn.needs_password:
        return "; the server wants a password: give it in password_file"
    if pgconn.used_password:
        return "; if that is about the password, put the right one into password_file (or where libpq looks for it)"
    return ""
