"""What a broker does after it lost its connection to the store, before anything is sent over the next connection.

A broker that takes a session by force, or declares another broker dead, records that in the store and then ends the
other's connection to the store. So a broker whose sessions were taken while it was paused or cut off always reconnects,
and runs this before it can store anything more. It asks the store which sessions it still owns. Unanswered publishes of
the other sessions are not sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import aclosing

from broker_adapter.adapter import Reconnection
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session.leases import Leases
from broker_adapter.mqtt.session.owned_session import OwnedSession
from broker_adapter.mqtt.session.session import PendingPublishes, Session
from broker_adapter.results import PendingAppend

_log = logging.getLogger(__name__)


class Verification:
    """Gives up the sessions that this broker does not own any more, and withdraws their unanswered publishes.

    Args:
        broker_id: This broker.
        leases: Tells whether this broker was declared dead.
        open_here: Returns the sessions that are open at this broker, by client.
        pending_publishes: Closed sessions with unanswered publishes.
        on_unanswered: Called for a session that this broker still owns and some of whose publishes will never be
            answered: its connection must end, so that the client sends them again.

    Attributes:
        count: How often sessions were compared with the store.
    """

    def __init__(
        self,
        broker_id: str,
        leases: Leases,
        open_here: Callable[[], dict[str, OwnedSession]],
        pending_publishes: PendingPublishes,
        on_unanswered: Callable[[Session], None],
    ) -> None:
        self._broker_id = broker_id
        self._leases = leases
        self._open_here = open_here
        self._pending_publishes = pending_publishes
        self._on_unanswered = on_unanswered
        self.count = 0

    async def verify(self, reconnection: Reconnection) -> None:
        """Compare the sessions that are open here with those that the store says this broker owns.

        Raises:
            StorageError: The connection was lost again, or the store does not answer.
        """
        self.count += 1
        before = list(self._open_here().values())
        if before:
            marked: set[str] = set()
            # A broker that was declared dead owns none: another one may be closing them now.
            if await self._leases.is_valid(reconnection):
                async with aclosing(reconnection.scan_state(keys.owned(self._broker_id))) as marks:
                    marked = {mark.value.decode() async for mark in marks}
            self.lose(one for one in before if one.session.client_id not in marked)
        self._withdraw(reconnection)

    def lose(self, sessions: Iterable[OwnedSession]) -> None:
        """End the connections of sessions that this broker does not own any more."""
        count = 0
        for owned in sessions:
            count += owned.session.is_open
            owned.lose()
        if count:
            _log.warning("%d sessions were taken over while the store was unreachable", count)

    def _withdraw(self, reconnection: Reconnection) -> None:
        """Withdraw the publishes of lost sessions, and those that share a batch with them.

        An append that shares a batch with a withdrawn one is not sent again either. Then the later publishes of its
        connection must not be sent either, so that the client's messages keep their order when it sends them again.
        """
        gone = self._pending_publishes.sessions()
        if not gone:
            return
        still_open = [one.session for one in self._open_here().values() if one.session.publishes is not None]
        publisher_of = {append: one for one in (*gone, *still_open) for append in _unanswered(one)}
        shared: dict[Session, list[set[Session]]] = {}
        for batch in reconnection.unanswered_batches():
            publishers = {publisher_of[append] for append in batch if append in publisher_of}
            for one in publishers:
                shared.setdefault(one, []).append(publishers)
        withdrawn, reached = set(gone), list(gone)
        while reached:
            for publishers in shared.get(reached.pop(), ()):
                reached += publishers - withdrawn
                withdrawn |= publishers
        for session in withdrawn.difference(gone):
            assert session.publishes is not None
            session.publishes.stop()
            self._on_unanswered(session)
        reconnection.withdraw({append for append, session in publisher_of.items() if session in withdrawn})


def _unanswered(session: Session) -> Collection[PendingAppend]:
    return () if session.publishes is None else session.publishes.unanswered()
