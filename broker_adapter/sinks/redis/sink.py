"""A driver's sink in Redis: its connection, use of the scripts, and conversion of errors."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Unpack

import trio
from anyio import BrokenResourceError, connect_tcp
from anyio.abc import ByteStream
from coredis.connection import BaseConnectionParams, TCPConnection, TCPLocation
from coredis.exceptions import (
    AuthenticationFailureError,
    AuthenticationRequiredError,
    AuthorizationError,
    BusyLoadingError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    UnknownCommandError,
    WrongTypeError,
)

from broker_adapter.sinks.batch import Batch
from broker_adapter.sinks.errors import BatchRefusedError, DriverFencedError, SinkUnavailableError, UnwritableRowError
from broker_adapter.sinks.redis.scripts import TAKE_OVER, WRITE, Script, pack_rows, position_key
from broker_adapter.sinks.redis.settings import RedisSettings, read_url
from broker_adapter.sinks.setting_kinds import read_secret
from broker_adapter.sinks.sink import Sink, SinkContext

# coredis removes the code from errors for which it has classes; the text of all others begins with the code.
_WAYS_OUT: Final[dict[type[RedisError], str]] = {
    AuthenticationRequiredError: "NOAUTH: give password_file, and user if it is not the default one",
    AuthenticationFailureError: "WRONGPASS: correct user and password_file",
    AuthorizationError: "NOPERM: allow the user to run EVAL, EVALSHA, XADD, HGET, HMGET, HSET, HINCRBY and TYPE",
    BusyLoadingError: "LOADING: it reads its data from disk, or accepts no more clients",
    MovedError: "MOVED: this is one node of a Redis Cluster, and the key is on another; give that one's address",
    ReadOnlyError: "READONLY: this is a replica; give the primary's address",
    UnknownCommandError: "it is not Redis, or older than version 6",
    WrongTypeError: "WRONGTYPE: the key has a value of another type; rename it or give another stream",
}
_WAYS_OUT_BY_CODE: Final = {
    "OOM": "raise maxmemory, or lower max_length",
    "MASTERDOWN": "this is a replica that lost its primary; give the primary's address",
    "MISCONF": "the server cannot write to its disk",
    "NOREPLICAS": "too few replicas are connected for min-replicas-to-write",
    "DENIED": "the server accepts no clients from other machines (protected-mode)",
}


class _Connection(TCPConnection):
    """A connection over an open stream: if coredis opens it and that fails, buffers of coredis stay unclosed."""

    def __init__(self, stream: ByteStream, location: TCPLocation, **settings: Unpack[BaseConnectionParams]) -> None:
        super().__init__(location, **settings)
        self._opened = stream

    async def _connect(self) -> ByteStream:
        return self._opened


class RedisSink(Sink):
    """One connection; batches are written one at a time.

    Args:
        connections: Nursery of connections.
        tls: TLS context for ``rediss://`` addresses.
    """

    keeps_position = True

    def __init__(
        self,
        settings: RedisSettings,
        context: SinkContext,
        connections: trio.Nursery,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._settings = settings
        self._context = context
        self._connections = connections
        self._tls = tls
        self._address = read_url(settings.url)
        self._shown = f"{self._address}, stream {settings.stream}"
        self._position_key = position_key(settings.stream, context.queue_id)
        self._connection: _Connection | None = None
        self._turn: int | None = None

    async def check(self) -> None:
        async with self._calling():
            if self._connection is None:
                self._connection = await self._connect()
            connection = self._connection
            found = await connection.create_request(b"TYPE", self._settings.stream)
            if found not in (b"stream", b"none"):
                raise WrongTypeError(f"the key holds a {_text(found)}")
            epoch = await connection.create_request(b"HGET", self._position_key, "epoch")
            self._refuse_if_stale(epoch)

    async def position(self) -> int | None:
        async with self._calling():
            reply = await self._run(TAKE_OVER, [self._position_key], [self._context.epoch, self._context.bridge])
            is_taken, turn, position = reply
            if not is_taken:
                self._refuse_if_stale(turn)
        self._turn = int(_text(turn))
        return None if position is None else int(_text(position))

    async def write(self, batch: Batch) -> None:
        try:
            packed = pack_rows(batch.rows, self._context.columns)
        except UnwritableRowError as error:
            raise BatchRefusedError(
                f"{self._shown}: row {error.index} cannot be written: {error}", index=error.index
            ) from error
        async with self._calling():
            turn = 0 if self._turn is None else self._turn
            counts = [self._context.epoch, turn, batch.first_offset, batch.next_offset, self._settings.max_length]
            is_taken, *found = await self._run(WRITE, [self._settings.stream, self._position_key], [*counts, *packed])
            if not is_taken:
                epoch, their_turn, position = found
                self._refuse_if_stale(epoch)
                raise SinkUnavailableError(
                    f"{self._shown}: {self._position_key} has position {_text(position)}, epoch {_text(epoch)} and "
                    f"turn {_text(their_turn)}, so turn {turn} of epoch {self._context.epoch} cannot write from "
                    f"{batch.first_offset} on; read the position again"
                )

    async def aclose(self) -> None:
        self._drop()
        await trio.lowlevel.checkpoint()

    async def _connect(self) -> _Connection:
        settings = self._settings
        try:
            password = read_secret("password", settings.password, settings.password_file)
        except SinkUnavailableError as error:
            raise SinkUnavailableError(f"{self._shown}: {error}") from error
        connection = _Connection(
            await self._open_stream(),
            TCPLocation(self._address.host, self._address.port),
            username=settings.user or None,
            password=password or None,
            db=self._address.database,
            client_name=f"journal-bridge-{self._context.queue_id}",
            ssl_context=self._tls,
        )
        await self._connections.start(connection.run)
        return connection

    async def _open_stream(self) -> ByteStream:
        host, port = self._address.host, self._address.port
        if self._tls is None:
            return await connect_tcp(host, port)
        return await connect_tcp(host, port, ssl_context=self._tls, tls_standard_compatible=False)

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[int | str | bytes]) -> list[object]:
        connection = self._connection
        if connection is None:
            raise SinkUnavailableError(f"{self._shown}: there is no connection; call check first")
        try:
            reply = await connection.create_request(b"EVALSHA", script.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            # The server has not run the script before: it was restarted, or replaced by a replica.
            reply = await connection.create_request(b"EVAL", script.text, len(keys), *keys, *arguments)
        assert isinstance(reply, list)
        return list(reply)

    def _refuse_if_stale(self, epoch: object) -> None:
        if epoch is not None and int(_text(epoch)) > self._context.epoch:
            raise DriverFencedError(
                f"{self._shown}: {self._position_key} has seen epoch {_text(epoch)}, and this driver has "
                f"{self._context.epoch}: another one drives the queue now"
            )

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[None]:
        """Limit the time of a call, and close the connection unless the call succeeded or was refused permanently."""
        try:
            with trio.fail_after(self._settings.timeout_s):
                yield
        except DriverFencedError:
            raise
        except trio.TooSlowError:
            self._drop()
            raise SinkUnavailableError(
                f"{self._shown}: no answer within timeout_s = {self._settings.timeout_s}"
            ) from None
        except (RedisError, OSError, BrokenResourceError) as error:
            self._drop()
            raise SinkUnavailableError(f"{self._shown}: {_in_words(error)}") from error
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Close the connection; calls in progress fail."""
        if self._connection is not None:
            self._connection.invalidate()
        self._connection = self._turn = None


def _in_words(error: Exception) -> str:
    words = str(error)
    cause = error.__cause__
    if cause is not None and not isinstance(error, tuple(_WAYS_OUT)):
        words += f" ({' '.join(str(cause).split()) or type(cause).__name__})"
    way_out = next((way for kind, way in _WAYS_OUT.items() if isinstance(error, kind)), None)
    way_out = way_out or _WAYS_OUT_BY_CODE.get(words.partition(" ")[0].lstrip("-"))
    return " ".join(words.split()) + (f"; {way_out}" if way_out else "")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
