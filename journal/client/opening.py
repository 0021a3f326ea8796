"""Opening a client of the journal service: what it is made of, and the task that keeps its connection alive."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from journal.client.address import Address
from journal.client.appends import AppendLimits, Appends
from journal.client.batching import BatchEncoder
from journal.client.client import Client
from journal.client.reconnection import ServerRestored
from journal.client.route import CONNECT_S, LONGEST_DELAY_S, PING_S, Route
from journal.client.session_keeper import SessionTimes, keep_session
from journal.client.transport import Transport
from journal.protocol.errors import ConnectionLostError
from journal.protocol.messages import READ_FOLLOWER
from shards.back_off import BackOff
from shards.format.compression import Codec

FIRST_WITHIN_S: Final = 10.0
"""Default limit in seconds for the first attempt to reach a server."""


@asynccontextmanager
async def open_client(
    address: str,
    *,
    name: str | None = None,
    producer_name: str | None = None,
    credentials: dict[str, str] | None = None,
    limits: AppendLimits = AppendLimits(),
    join_appends: bool = True,
    codec: Codec = Codec.NONE,
    backoff: BackOff = BackOff(0.05, 2.0),
    times: SessionTimes = SessionTimes(),
    flush_timeout_s: float = 5.0,
    ends_at_restore: bool = False,
    on_restored: Callable[[ServerRestored], None] | None = None,
    connect: Callable[[trio.Nursery], Awaitable[Transport]] | None = None,
) -> AsyncIterator[Client]:
    """Open a client for the length of the block; it is connected when the block begins.

    Args:
        address: ``host:port`` or a URL, which may also identify the client: see `journal.client.address`. Several
            servers of one store are separated by commas; the client finds the one that owns the store. With
            ``?read=follower`` it only reads, and prefers a server that follows the owner.
        name: For the server's logs and statistics.
        producer_name: Producer name for exactly-once appends; by default a unique one. A given name fences every client
            that used it before.
        credentials: Credentials to use instead of those of the address and the environment.
        limits: Bounds of appends.
        join_appends: Let small appends to one shard share batches.
        codec: Compression of batches that are encoded here.
        backoff: Delays before connecting or sending again.
        times: How long to wait for the server. Without a limit of its own the first connection is tried for 10 s.
        flush_timeout_s: How long leaving the block without an error waits for unacknowledged appends.
        ends_at_restore: Whether to end with `ServerRestoredError`, before anything is sent, if the server's data was
            restored from a backup since the last connection, or another server answers at the address. For programs
            that store more of the server's state than subscriptions. Otherwise subscriptions go back to the first
            records that may differ now.
        on_restored: Called after such a restore, before anything is sent or received on the new connection. Items that
            were received before may still be waiting to be read. Must not block or raise.
        connect: Creates the transport, instead of connecting to ``address``.

    Raises:
        ConnectionLostError: ``times.first_within_s`` or ``times.give_up_after_s`` passed without a connection.
        InvalidRequestError: The server at the address differs from what the address requires, for example in TLS.
        AuthenticationError, FormatVersionError: The server refuses this client.
    """
    route = Route(Address.parse_all(address))
    identity = name or unique_name("client")
    if times.first_within_s is None and times.give_up_after_s is None:
        times = attrs.evolve(times, first_within_s=FIRST_WITHIN_S)
    if route.has_several:
        times = attrs.evolve(
            times,
            connect_timeout_s=min(times.connect_timeout_s, CONNECT_S),
            ping_interval_s=min(times.ping_interval_s, PING_S),
        )
        backoff = attrs.evolve(backoff, longest_s=min(backoff.longest_s, LONGEST_DELAY_S))
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:

        def after(delay_s: float, call: Callable[[], None]) -> None:
            nursery.start_soon(_call_after, delay_s, call)

        appends = Appends(
            producer_name or f"{identity}-{uuid.uuid4().hex}",
            after=after,
            encoder=BatchEncoder(_now_us, codec),
            limits=limits,
            backoff=backoff,
        )
        client = Client(
            identity,
            appends,
            after=after,
            backoff=backoff,
            join_appends=join_appends,
            ends_at_restore=ends_at_restore,
            on_restored=on_restored,
            only_reads=route.prefers_followers,
        )

        keep = partial(
            keep_session,
            client,
            connect or route.connect,
            name=identity,
            credentials=route.credentials if credentials is None else lambda: credentials,
            backoff=backoff,
            times=times,
            find_other_server=None if connect else route.find_other_server,
            ended=route.ended,
            read=READ_FOLLOWER if route.prefers_followers else "",
            check=route.check,
        )
        try:
            async with _running(client, keep, nursery, flush_timeout_s):
                yield client
        except Exception as error:  # noqa: BLE001 raised below: the nursery would wrap it in a group
            failure = error
    if failure is not None:
        raise failure


@asynccontextmanager
async def _running(
    client: Client, keep: Callable[[], Awaitable[None]], nursery: trio.Nursery, flush_timeout_s: float
) -> AsyncIterator[None]:
    """Run the task that keeps a client connected. At the end wait for its appends, then end all tasks."""
    nursery.start_soon(keep)
    try:
        await client.wait_connected()
        yield
        with trio.move_on_after(flush_timeout_s):
            await client.flush()
    finally:
        client.session_refused(ConnectionLostError("the client is closed"))
        nursery.cancel_scope.cancel()


def unique_name(prefix: str) -> str:
    """A name for a client that no other one has: END_CLIENT ends all connections with one name."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def _now_us() -> int:
    return time.time_ns() // 1000


async def _call_after(delay_s: float, call: Callable[[], None]) -> None:
    await trio.sleep(delay_s)
    call()
