"""One session in memory, at its owner. `owned_session` stores it; `sessions` opens and closes it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

import attrs

from broker_adapter.mqtt.model.position import Position, ReachedLsn, RetainedScan
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.session.outbound_window import OutboundWindow
from broker_adapter.mqtt_codec.packets import Version
from broker_adapter.results import PendingAppend

NEVER_EXPIRES_S: Final = 0xFFFF_FFFF
"""Session expiry interval with which a session never expires."""


@attrs.frozen(slots=True)
class Membership:
    """A session's membership of a shared subscription.

    Attributes:
        group: Name of the store's group that the members share. After the last member of a shared subscription has
            left, the next one creates a group with another name.
        after: The group gets messages after this position.
    """

    group: str
    after: Position


class Publishes(Protocol):
    """The appends that a connection made for its session (not the commits, which `Sessions.commit` makes)."""

    @property
    def is_answered(self) -> bool:
        """Whether the store has answered all appends."""

    def unanswered(self) -> Collection[PendingAppend]:
        """The appends that the store has not answered."""

    def oldest_s(self, now_s: float) -> float:
        """For how many seconds the oldest publish has had no outcome, by the calls of this; 0 if all have one."""

    def why_it_waits(self) -> str:
        """What that publish waits for, for operators."""

    def stop(self) -> None:
        """Send nothing more to the store, and no more acknowledgements to the client."""

    async def wait_answered(self) -> None:
        """Return when the store has answered all appends."""


@attrs.define(slots=True, eq=False)
class Session:
    """State of one client between and during its connections.

    The connection changes it and tells `Sessions` when something must be, or may be, stored.

    Attributes:
        epoch: Rises with each owner; the store refuses writes of an earlier owner.
        expiry_interval_s: Session expiry interval, in seconds; `NEVER_EXPIRES_S`: never.
        subscriptions: Options by topic filter; shared ones under their whole filter (``$share/...``).
        memberships: Of shared subscriptions, by (group name, topic filter).
        out: Messages under way to the client.
        inbound: Packet identifiers of QoS 2 messages from the client that are stored and not released, each with the
            digest of its message (`message.digest_of`; 0 if it is unknown).
            `Sessions.commit` adds to them; the connection removes those that PUBREL names, and saves that before it
            sends PUBCOMP.
        retained: Retained messages that are still to be sent, in the order of the subscriptions.
        is_open: Whether this broker still owns it; false once the session is closed or taken over.
        publishes: The appends of its connection; None before the first PUBLISH.
    """

    client_id: str
    epoch: int
    version: Version
    expiry_interval_s: int
    subscriptions: dict[str, SubscriptionOptions] = attrs.Factory(dict)
    memberships: dict[tuple[str, str], Membership] = attrs.Factory(dict)
    out: OutboundWindow = attrs.Factory(OutboundWindow)
    inbound: dict[int, int] = attrs.Factory(dict)
    retained: list[RetainedScan] = attrs.Factory(list)
    is_open: bool = True
    publishes: Publishes | None = None

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its connection. If not, the store has little more than its owner."""
        return self.expiry_interval_s > 0

    @property
    def position_lsn(self) -> ReachedLsn:
        """Every matching message up to this lsn has been taken: it is finished, or under way in `out`."""
        return self.out.position_lsn

    @property
    def knows_what_was_sent(self) -> bool:
        """Whether every stored message that was ever sent to the client is finished, or under way in `out`.

        False after a takeover from an owner that ended without storing the session, until all messages that it may have
        sent have been taken again.
        """
        before = self.out.maybe_sent_lsn
        return self.position_lsn + 1 >= before and all(scan.until.lsn >= before for scan in self.retained)

    def advance(self, position_lsn: ReachedLsn) -> None:
        """Move the position forward; a lower one is ignored. `Sessions.save_soon` stores it."""
        self.out.advance(position_lsn)


class PendingPublishes:
    """Sessions that are closed at this broker, with publishes that the store has not answered.

    Until they are answered no other connection may open the session: these publishes could be stored behind those of
    the new connection.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, list[Session]] = {}

    def add(self, session: Session) -> None:
        """Add a session that was closed here: its publishes are stopped."""
        if session.publishes is not None:
            session.publishes.stop()
            if not session.publishes.is_answered:
                self._sessions.setdefault(session.client_id, []).append(session)

    def sessions(self) -> list[Session]:
        """The sessions with unanswered publishes; the others are removed."""
        for client_id, sessions in list(self._sessions.items()):
            left = [one for one in sessions if one.publishes is not None and not one.publishes.is_answered]
            if left:
                self._sessions[client_id] = left
            else:
                del self._sessions[client_id]
        return [session for sessions in self._sessions.values() for session in sessions]

    async def wait_answered(self, client_id: str) -> None:
        """Return when all publishes of earlier connections of a client are answered."""
        for session in list(self._sessions.get(client_id, ())):
            if session.publishes is not None:
                await session.publishes.wait_answered()
