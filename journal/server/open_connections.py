"""The open connections, and the information about them for administrators. No network access here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import attrs

from journal.server.client_connection import ClientConnection

Transport: TypeAlias = Literal["tcp", "websocket", "json"]


@attrs.frozen(slots=True)
class SubscriptionInfo:
    """One subscription of a connection.

    Attributes:
        connection: Number of the connection.
        number: Its number on the connection.
        target: The shard or the topic filter.
        credit_bytes: Bytes that may still be pushed before the client grants more.
    """

    connection: int
    number: int
    target: str
    credit_bytes: int


@attrs.frozen(slots=True)
class ConnectionInfo:
    """One connection.

    Attributes:
        number: Number of the connection since the start of the server.
        transport: ``tcp`` or ``websocket`` (both with the native protocol), or ``json``.
        peer: Address of the client, ``HOST:PORT``.
        client: Name that the client chose.
        principal: The authenticated principal.
        opened_us: When it was opened.
        subscriptions: Number of its subscriptions.
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
    """A connection and its transport."""

    served: ClientConnection
    transport: Transport
    opened_us: int


class OpenConnections:
    """All open connections by number, oldest first."""

    def __init__(self) -> None:
        self._open: dict[int, OpenConnection] = {}

    def add(self, connection: OpenConnection) -> None:
        """Add a connection that was opened."""
        self._open[connection.served.number] = connection

    def discard(self, connection: OpenConnection) -> None:
        """Remove a connection that was closed."""
        self._open.pop(connection.served.number, None)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter([each.served for each in self._open.values()])

    def page(self, after: int, limit: int) -> tuple[list[ConnectionInfo], bool]:
        """Up to ``limit`` connections with higher numbers than ``after``, and whether there are more."""
        numbers = [number for number in self._open if number > after]
        return [_info(self._open[number]) for number in numbers[:limit]], len(numbers) > limit

    def subscriptions(self, after: int, limit: int) -> tuple[list[SubscriptionInfo], bool]:
        """The subscriptions of the connections that `page` returns."""
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
