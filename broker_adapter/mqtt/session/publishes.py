"""Sessions that are gone from this broker, and whose publishes the store has not all answered."""

from __future__ import annotations

from broker_adapter.mqtt.session.session import Session


class LeftPublishes:
    """Sessions that this broker has no more, with publishes that the store has not answered.

    Until they are answered no other connection may have the session: they could be stored behind what is published
    there.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, list[Session]] = {}

    def add(self, session: Session) -> None:
        """A session is not open here any more: its publishes are stopped."""
        if session.publishes is not None:
            session.publishes.stop()
            if not session.publishes.is_answered:
                self._sessions.setdefault(session.client_id, []).append(session)

    def sessions(self) -> list[Session]:
        """Those with publishes that are not answered; the others are forgotten."""
        for client_id, sessions in list(self._sessions.items()):
            left = [one for one in sessions if one.publishes is not None and not one.publishes.is_answered]
            if left:
                self._sessions[client_id] = left
            else:
                del self._sessions[client_id]
        return [session for sessions in self._sessions.values() for session in sessions]

    async def wait_answered(self, client_id: str) -> None:
        """Return when what earlier connections of a client have published is answered."""
        for session in list(self._sessions.get(client_id, ())):
            if session.publishes is not None:
                await session.publishes.wait_answered()
