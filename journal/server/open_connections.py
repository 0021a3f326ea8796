"""The connections that are open, and what an administrator may see of them. No network here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, TypeAlias

import attrs
import trio

from journal.access.authorization import Principal
from journal.access.quotas import Meter
from journal.server.output import Output
from journal.server.pushing import Pushing
from shards.errors import StorageError

Transport: TypeAlias = Literal["tcp", "websocket", "json"]


class Served(Protocol):
    """A connection of any protocol, as the server handles it.

    Attributes:
        number: Its number on this server.
        peer: ``HOST:PORT`` at the other end.
        certificate_name: Common name of the certificate that the client showed; empty for none.
        client: Name that the client gave itself.
        greeted: The client was let in.
        principal: As whom.
        meter: What its traffic is counted on; None if nothing bounds it.
        refusal: Why it was not let in, or may not stay.
        output: What goes out.
        pushing: Its subscriptions.
        inflight_bytes: Appended bytes that wait for their commit.
        receiving: Ends the receiving when it is cancelled.
        nursery: Of its tasks.
    """

    number: int
    peer: str
    certificate_name: str
    client: str
    greeted: bool
    principal: Principal
    meter: Meter | None
    refusal: StorageError | None
    output: Output
    pushing: Pushing
    inflight_bytes: int
    receiving: trio.CancelScope
    nursery: trio.Nursery

    def greet(self, client: str, principal: Principal, meter: Meter | None = None) -> None:
        """The client was let in."""

    def renew(self, principal: Principal) -> None:
        """Go on as the same principal with other rights."""

    def revoke(self, error: StorageError) -> None:
        """The client may stay no longer: tell it why, and end the connection."""

    def grant_again(self) -> None:
        """What is left of the client's quotas has changed."""

    async def settle(self) -> None:
        """Nothing more is received: return when every request is answered."""

    def tell(self, error: StorageError) -> None:
        """Say why the connection ends."""

    def close(self) -> None:
        """The client is gone: end its subscriptions."""


@attrs.frozen(slots=True)
class SubscriptionInfo:
    """One subscription of a connection.

    Attributes:
        connection: Number of the connection.
        number: Its number there.
        target: The shard or the topic filter.
        credit_bytes: What the client still takes.
    """

    connection: int
    number: int
    target: str
    credit_bytes: int


@attrs.frozen(slots=True)
class ConnectionInfo:
    """One connection.

    Attributes:
        number: Its number since the start.
        transport: How its bytes come: ``tcp``, ``websocket`` (both the native protocol), ``json``.
        peer: ``HOST:PORT`` at the other end.
        client: Name that the client gave itself.
        principal: Who it is.
        opened_us: Since when.
        subscriptions: How many it has.
        inflight_bytes: Appended bytes that wait for their commit.
        waiting_bytes: Bytes that wait to be sent.
        sent_bytes: Bytes sent so far.
    """

    number: int
    transport: Transport
    peer: str
    client: str
    principal: str
    opened_us: int
    subscriptions: int
    inflight_bytes: int
    waiting_bytes: int
    sent_bytes: int


@attrs.frozen(slots=True, eq=False)
class OpenConnection:
    """A connection and how it came."""

    served: Served
    transport: Transport
    opened_us: int


class OpenConnections:
    """All open connections by number, oldest first."""

    def __init__(self) -> None:
        self._open: dict[int, OpenConnection] = {}

    def add(self, connection: OpenConnection) -> None:
        """It was opened."""
        self._open[connection.served.number] = connection

    def discard(self, connection: OpenConnection) -> None:
        """It was closed."""
        self._open.pop(connection.served.number, None)

    def __iter__(self) -> Iterator[Served]:
        return iter([each.served for each in self._open.values()])

    def page(self, after: int, limit: int) -> tuple[list[ConnectionInfo], bool]:
        """Up to ``limit`` connections with higher numbers than ``after``, and whether there are more."""
        numbers = [number for number in self._open if number > after]
        return [_info(self._open[number]) for number in numbers[:limit]], len(numbers) > limit

    def subscriptions(self, after: int, limit: int) -> tuple[list[SubscriptionInfo], bool]:
        """The subscriptions of the connections that `page` would give."""
        numbers = [number for number in self._open if number > after]
        found = [
            SubscriptionInfo(number, state.number, state.target, state.credit_bytes)
            for number in numbers[:limit]
            for state in self._open[number].served.pushing.states()
        ]
        return found, len(numbers) > limit


def _info(connection: OpenConnection) -> ConnectionInfo:
    served = connection.served
    return ConnectionInfo(
        number=served.number,
        transport=connection.transport,
        peer=served.peer,
        client=served.client,
        principal=served.principal.name,
        opened_us=connection.opened_us,
        subscriptions=len(served.pushing),
        inflight_bytes=served.inflight_bytes,
        waiting_bytes=served.output.waiting_bytes,
        sent_bytes=served.output.sent_bytes,
    )
