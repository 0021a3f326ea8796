"""Publishes of sessions that are closed at this broker, but which the store has not all answered."""

from __future__ import annotations

from broker_adapter.mqtt.session.session import Session


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
