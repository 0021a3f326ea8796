"""The audit log of a broker: logins, refused publishes and subscriptions, takeovers, and what administrators did.

Its lines have the form of the server's (`journal.access.audit`), with the client identifier beside the user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from broker_adapter.mqtt.access.permissions import Principal
from journal.access.audit import AuditEntry, AuditLog
from journal.access.refused_logins import RefusedLogins
from journal.access.repeated_acts import RepeatedActs

MAX_DIFFERENT: Final = 100
"""Different acts of one kind, of one user from one network, with lines of their own in ten minutes: a client chooses
the topics that are refused to it, and must not fill the disk by choosing many."""

_MAX_CHARACTERS: Final = 1024
_OK: Final = "ok"


class BrokerAudit:
    """Writes what concerns security; see `AuditLog` for durability and errors.

    Acts that clients repeat are counted after their first line (`RepeatedActs`), refused logins are limited
    (`RefusedLogins`).

    Args:
        audit: The file.
        is_user: Returns whether there is a user of this name. Other names of refused logins are left out, since people
            type passwords there.
    """

    def __init__(self, audit: AuditLog | None = None, is_user: Callable[[str], bool] = lambda _name: False) -> None:
        self._audit = audit or AuditLog()
        self._is_user = is_user
        self._refused_logins = RefusedLogins(self._audit)
        self._repeated = RepeatedActs(self._audit, max_different=MAX_DIFFERENT)

    def logged_in(self, principal: Principal, peer: str) -> None:
        """A client, or an administrator over HTTP, was authenticated."""
        self._repeat(principal, peer, "login", "", _OK)

    def login_refused(self, username: str | None, peer: str) -> None:
        """A client was not authenticated."""
        name = username or ""
        self._refused_logins.write(user=name if self._is_user(name) else "", peer=peer)

    def denied(self, act: str, principal: Principal, peer: str, target: str, outcome: str = "not_authorized") -> None:
        """A client may not do what it asked for.

        Args:
            act: ``connect``, ``publish``, ``subscribe``, ``will``; over HTTP ``administer``.
            principal: The client.
            peer: Its address, empty if it is not connected.
            target: The topic, filter or operation.
            outcome: Why.
        """
        self._repeat(principal, peer, act, target, outcome)

    def took_over(self, principal: Principal, peer: str, owner: str) -> None:
        """A client took the session of a connection that was open at a broker (``owner``)."""
        self._repeat(principal, peer, "takeover", owner, _OK)

    def record(
        self,
        act: str,
        *,
        by: str = "",
        peer: str = "",
        target: str = "",
        client: str = "",
        reason: str = "",
        outcome: str = _OK,
    ) -> None:
        """An administrative act, which always has a line of its own.

        Args:
            act: The act, in one word.
            by: Who did it.
            peer: Its address, empty for a command on another machine.
            target: What it was done to.
            client: The client identifier that it was done to.
            reason: Why it was done.
            outcome: ``ok``, or the code of the error.
        """
        self._audit.write(
            AuditEntry(
                principal=by,
                peer=peer,
                act=act,
                target=target[:_MAX_CHARACTERS],
                client=client[:_MAX_CHARACTERS],
                reason=reason[:_MAX_CHARACTERS],
                outcome=outcome,
            )
        )

    def reopen(self) -> None:
        """Continue in the file that has the name now; see `AuditLog.reopen`.

        Raises:
            ConfigurationError: It cannot be opened; the old one stays in use.
        """
        self._audit.reopen()

    async def keep_telling(self) -> None:
        """Write the counts of periods that have ended, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._refused_logins.keep_telling)
            nursery.start_soon(self._repeated.keep_telling)

    def close(self) -> None:
        """Write all counts, and close the file."""
        self._refused_logins.tell(also_unfinished=True)
        self._repeated.tell(also_unfinished=True)
        self._audit.close()

    def _repeat(self, principal: Principal, peer: str, act: str, target: str, outcome: str) -> None:
        self._repeated.write(
            AuditEntry(
                principal=principal.username[:_MAX_CHARACTERS],
                peer=peer,
                act=act,
                target=target[:_MAX_CHARACTERS],
                client=principal.client_id[:_MAX_CHARACTERS],
                outcome=outcome,
            )
        )
