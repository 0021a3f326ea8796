"""Opening a client of the journal service: what it is made of, and the task that keeps its connection alive."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from journal.client.address import Address
from journal.client.appends import AppendLimits, Appends
from journal.client.batching import BatchEncoder
from journal.client.client import Client
from journal.client.connection import HEARTBEAT_S
from journal.client.peer_probe import find_other_server
from journal.client.reconnection import ServerRestored
from journal.client.session_keeper import SessionTimes, keep_session
from journal.client.transport import Transport, open_transport
from journal.protocol.errors import (
    ConnectionLostError,
)
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
    connect_timeout_s: float = 10.0,
    give_up_after_s: float | None = None,
    first_within_s: float | None = None,
    ping_interval_s: float = 15.0,
    heartbeat_s: float = HEARTBEAT_S,
    flush_timeout_s: float = 5.0,
    ends_at_restore: bool = False,
    on_restored: Callable[[ServerRestored], None] | None = None,
    connect: Callable[[trio.Nursery], Awaitable[Transport]] | None = None,
) -> AsyncIterator[Client]:
    """Open a client for the length of the block; it is connected when the block begins.

    Args:
        address: ``host:port`` or a URL, which may also identify the client: see `journal.client.address`.
        name: For the server's logs and statistics.
        producer_name: Producer name for exactly-once appends; by default a unique one. A given name fences every client
            that used it before.
        credentials: Credentials to use instead of those of the address and the environment.
        limits: Bounds of appends.
        join_appends: Let small appends to one shard share batches.
        codec: Compression of batches that are encoded here.
        backoff: Delays before connecting or sending again.
        connect_timeout_s: Bound on one attempt to connect.
        give_up_after_s: Seconds without a connection after which every operation fails; None for no limit.
        first_within_s: The same for the time before the first connection, `math.inf` for no limit; None uses
            ``give_up_after_s``, or 10 s where that is None.
        ping_interval_s: Silence of the server after which it must answer a PING.
        heartbeat_s: How often something is sent at least. The server closes a connection on which it received nothing
            for three times as long, and other members of groups get the shares of such a client.
        flush_timeout_s: How long leaving the block without an error waits for unacknowledged appends.
        ends_at_restore: Whether to end with `ServerRestoredError`, before anything is sent, if the server's data was
            restored from a backup since the last connection, or another server answers at the address. For programs
            that store more of the server's state than subscriptions. Otherwise subscriptions go back to the first
            records that may differ now.
        on_restored: Called after such a restore, before anything is sent or received on the new connection. Items that
            were received before may still be waiting to be read. Must not block or raise.
        connect: Creates the transport, instead of connecting to ``address``.

    Raises:
        ConnectionLostError: ``first_within_s`` or ``give_up_after_s`` passed without a connection.
        InvalidRequestError: The server at the address differs from what the address requires, for example in TLS.
        AuthenticationError, FormatVersionError: The server refuses this client.
    """
    place = Address.parse(address)
    identity = name or unique_name("client")
    times = SessionTimes(
        connect_timeout_s=connect_timeout_s,
        give_up_after_s=give_up_after_s,
        first_within_s=FIRST_WITHIN_S if first_within_s is None and give_up_after_s is None else first_within_s,
        ping_interval_s=ping_interval_s,
        heartbeat_s=heartbeat_s,
    )
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        scope = nursery.cancel_scope

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
        )

        async def keep() -> None:
            await keep_session(
                client,
                connect or (lambda inner: open_transport(place, inner)),
                name=identity,
                credentials=place.credentials if credentials is None else lambda: credentials,
                backoff=backoff,
                times=times,
                find_other_server=None if connect else partial(find_other_server, place),
            )

        nursery.start_soon(keep)
        try:
            await client.wait_connected()
            yield client
            with trio.move_on_after(flush_timeout_s):
                await client.flush()
        except Exception as error:  # noqa: BLE001 raised below: the nursery would wrap it in a group
            failure = error
        finally:
            client.session_refused(ConnectionLostError("the client is closed"))
            scope.cancel()
    if failure is not None:
        raise failure


def unique_name(prefix: str) -> str:
    """A name for a client that no other one has: END_CLIENT ends all connections with one name."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def _now_us() -> int:
    return time.time_ns() // 1000


async def _call_after(delay_s: float, call: Callable[[], None]) -> None:
    await trio.sleep(delay_s)
    call()
