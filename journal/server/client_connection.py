"""What the connections of all protocols have in common: their place in the server, who the client is, and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import attrs
import trio

from journal.access.authorization import EVERYBODY, Principal, RevokedPrincipal
from journal.access.quotas import Allowance, Meter
from journal.engine import Engine
from journal.net.output import Output
from journal.server.pushing import Pushing
from journal.server.statistics import ServerStatistics
from shards.errors import StorageError


@attrs.frozen(slots=True)
class Peer:
    """The other side of a connection.

    Attributes:
        address: Address of the client, ``HOST:PORT``.
        certificate_name: The name in the client's certificate; empty without one.
        on_greeted: Called when the client was let in.
    """

    address: str
    certificate_name: str
    on_greeted: Callable[[], None]


@attrs.frozen(slots=True)
class Accepted:
    """What a server gives to each connection.

    Attributes:
        number: Number of the connection on this server.
        peer: The other side.
        engine: The engine.
        output: The outgoing messages.
        statistics: Counts what happens.
        nursery: Runs the tasks of the connection.
        report: Called with an error that is none of ours, and with the number.
    """

    number: int
    peer: Peer
    engine: Engine
    output: Output
    statistics: ServerStatistics
    nursery: trio.Nursery
    report: Callable[[Exception, int], None]


class ClientConnection(ABC):
    """State of one connection that is the same in all protocols.

    Attributes:
        number: Its number on this server.
        peer: Address of the client, ``HOST:PORT``.
        certificate_name: The name in the client's certificate; empty without one.
        client: Name that the client chose.
        principal: The authenticated principal, after the greeting.
        meter: Its quotas; None if it has none.
        allowance: What it may use of things that all share.
        greeted: The greeting was accepted.
        refusal: Why the greeting was refused, if that was found after a wait, or why the client was disconnected later.
        output: The outgoing messages.
        pushing: Its subscriptions.
        nursery: Runs its tasks.
        inflight_bytes: Appended bytes that wait for their commit.
        polls: Waits that end when the server stops.
        receiving: Cancelling it ends the receiving.
    """

    def __init__(self, accepted: Accepted, pushing: Pushing) -> None:
        self.number = accepted.number
        self.peer = accepted.peer.address
        self.certificate_name = accepted.peer.certificate_name
        self.engine = accepted.engine
        self.output = accepted.output
        self.statistics = accepted.statistics
        self.nursery = accepted.nursery
        self.pushing = pushing
        self.client = ""
        self.principal: Principal = EVERYBODY
        self.meter: Meter | None = None
        self.allowance = Allowance()
        self.greeted = False
        self.refusal: StorageError | None = None
        self.inflight_bytes = 0
        self.polls: set[trio.CancelScope] = set()
        self.receiving = trio.CancelScope()
        self._report = accepted.report
        self._on_greeted = accepted.peer.on_greeted
        self._requests = 0
        self._was_refused = False
        self._progress = trio.lowlevel.ParkingLot()

    @property
    def named(self) -> dict[str, str]:
        """The client's name for a line of the log; nothing if it has not named itself."""
        return {"client": self.client} if self.client else {}

    def greet(self, client: str, principal: Principal, meter: Meter | None = None) -> None:
        """Note that the greeting was accepted."""
        self.greeted = True
        self.client = client
        self.principal = principal
        self.meter = self.pushing.meter = meter
        self._on_greeted()

    def renew(self, principal: Principal) -> None:
        """Continue as the same principal with other rights."""
        self.principal = principal

    def revoke(self, error: StorageError) -> None:
        """Refuse the client any further use: send it the reason and end the connection."""
        if self.refusal is not None:
            return
        self.refusal = error
        # The connection ends after the error was sent; until then the client has no rights.
        self.renew(RevokedPrincipal(self.principal.name))
        self.pushing.close()
        self.tell(error)
        self.receiving.cancel()

    @abstractmethod
    def tell(self, error: StorageError) -> None:
        """Send the reason for the end of the connection, unless the reply to a refused greeting was it."""

    @abstractmethod
    def grant_again(self) -> None:
        """Note that the rest of the client's quotas has changed."""

    @abstractmethod
    async def settle(self) -> None:
        """After the last receive: return when every request is answered."""

    @abstractmethod
    def close(self) -> None:
        """End its subscriptions: the client has disconnected."""
