"""From HELLO to a principal with rights and quotas, and the checks of operations that depend on the principal.

The rights that an operation needs are in `journal.access.rights`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import trio

from journal.access.audit import AuditEntry, outcome_noted
from journal.access.authenticator import AuthenticatedPrincipal
from journal.access.authorization import Principal
from journal.access.quotas import Meter
from journal.access.rights import UseRefusedError, shards_delivered
from journal.protocol.errors import AuthenticationError, NotAuthorizedError, RemoteProtocolError
from journal.protocol.frames import Op
from journal.protocol.message_codec import decode_request
from journal.server.client_connection import ClientConnection
from journal.server.connection import Connection
from journal.server.http_senders import HttpSenders
from journal.server.security import Security
from journal.server.stored_quotas import StoredQuotas

_LOGIN: Final = "login"
_SUBSCRIBE: Final = "subscribe"
_END_CLIENT: Final = "end_client"
_NOT_FAILED: Final = ("ok", "unknown")
_MAX_TARGET_CHARACTERS: Final = 1024
_LOOKED_AT_EVERY_S: Final = 30.0


@attrs.frozen(slots=True)
class _Target:
    """What an operation affects, for the audit log."""

    shard: str = ""
    cursor: str = ""


def _of_shard(request: Any) -> _Target:
    return _Target(request.name)


def _of_cursor(request: Any) -> _Target:
    return _Target(request.shard, request.name)


AUDITED: Final[dict[int, Callable[[Any], _Target]]] = {
    Op.SNAPSHOT: lambda request: _Target(),
    Op.CREATE_SHARD: _of_shard,
    Op.DELETE_SHARD: _of_shard,
    Op.SET_MODE: _of_shard,
    Op.CONFIGURE_SHARD: _of_shard,
    Op.ROLL: _of_shard,
    Op.TRIM: _of_shard,
    Op.CURSOR_COMMIT: _of_cursor,
    Op.CURSOR_DELETE: _of_cursor,
}
"""What each recorded operation affects, from its request: the very fields by which it is carried out."""

_REPEATED: Final = {Op.CURSOR_COMMIT}
"""Operations of which programs send many a second."""


class Login:
    """Authenticates clients, and applies their rights and quotas.

    Args:
        guard: The users, rules and quotas.
        stored: Measures the shards of accounts.
    """

    def __init__(self, guard: Security, stored: StoredQuotas) -> None:
        self._guard = guard
        self._stored = stored

    @property
    def everybody(self) -> Principal | None:
        """The principal of all clients if authentication is not configured; None if it is."""
        return self._guard.everybody

    @property
    def asks(self) -> bool:
        """Whether clients must send credentials."""
        known = self._guard.access.known
        return known.has_credentials and not known.anonymous

    async def admit(self, connection: ClientConnection, client: str, credentials: Mapping[str, str] | None) -> None:
        """Authenticate a client and accept its HELLO.

        Args:
            connection: The client's connection.
            client: The name that the client chose.
            credentials: The credentials that it sent, None without any.

        Raises:
            AuthenticationError: The credentials are missing or not valid.
            QuotaExceededError: The principal has too many connections.
        """
        access = self._guard.access
        principal = await self._authenticate(credentials, connection.peer, connection.certificate_name)
        meter = self._guard.quotas.meter_of(principal.name)
        if meter is not None:
            await self._stored.measure(meter.accounts)
        # A password check is not cancelled with its connection; a closed one would stay in the count for ever.
        await trio.lowlevel.checkpoint_if_cancelled()
        # There is no wait from here to the end: the checked state must still be valid then.
        renewed = access.renewed(principal)
        if renewed is None:
            raise AuthenticationError("the credentials were revoked during the login")
        connection.greet(client, renewed, self._guard.quotas.connect(principal.name))
        connection.allowance = self._guard.quotas.allowance_of(renewed)
        if principal.expires_at_s is not None:
            connection.nursery.start_soon(_end_at, connection, principal.expires_at_s)

    async def identify(self, credentials: Mapping[str, str] | None, peer: str) -> tuple[Principal, Meter | None]:
        """Authenticate the sender of a request without a connection, and find its quotas.

        Raises:
            AuthenticationError: The credentials are missing or not valid.
        """
        if (everybody := self.everybody) is not None:
            return everybody, None
        principal = await self._authenticate(credentials, peer)
        meter = self._guard.quotas.meter_of(principal.name)
        if meter is not None:
            await self._stored.measure(meter.accounts)
        return principal, meter

    async def _authenticate(
        self, credentials: Mapping[str, str] | None, peer: str, certificate_name: str = ""
    ) -> AuthenticatedPrincipal:
        try:
            principal = await self._guard.access.authenticate(credentials, peer, certificate_name)
        except AuthenticationError:
            self.refused(credentials, peer)
            raise
        self._guard.repeated_acts.write(
            AuditEntry(principal=principal.name, peer=peer, act=_LOGIN, target="", outcome="ok")
        )
        return principal

    @property
    def http_senders(self) -> HttpSenders:
        """Knows which principals send requests over HTTP."""
        return self._guard.http_senders

    def refused(self, credentials: Mapping[str, str] | None, peer: str) -> None:
        """Write a refused login into the audit log."""
        name = (credentials or {}).get("user", "")
        users = self._guard.access.known.users
        is_known = users is not None and users.hash_of(name) is not None
        self._guard.refused_logins.write(user=name if is_known else "", peer=peer)

    def record(self, entry: AuditEntry) -> None:
        """Write an administrative act into the audit log."""
        target, cursor = entry.target[:_MAX_TARGET_CHARACTERS], entry.cursor[:_MAX_TARGET_CHARACTERS]
        write = self._guard.audit.write if entry.outcome in _NOT_FAILED else self._guard.refused_acts.write
        write(attrs.evolve(entry, target=target, cursor=cursor))

    def record_refused(self, principal: str, peer: str, act: str, error: UseRefusedError) -> None:
        """Write a request that was refused for lack of rights into the audit log."""
        self._guard.refused_acts.write_use(principal=principal, peer=peer, act=act, error=error)

    def note_refused(self, connection: ClientConnection, act: str, error: Exception) -> None:
        """Do so for a request of a connection, if that is why it failed."""
        if isinstance(error, UseRefusedError):
            self.record_refused(connection.principal.name, connection.peer, act, error)

    def record_ended(self, connection: ClientConnection, principal: str) -> None:
        """Write into the audit log that a client has ended connections of another principal."""
        self.record(
            AuditEntry(
                principal=connection.principal.name,
                peer=connection.peer,
                act=_END_CLIENT,
                target=principal,
                outcome="ok",
            )
        )

    def leave(self, connection: ClientConnection) -> None:
        """Remove a closed connection from its quotas."""
        if connection.meter is not None:
            self._guard.quotas.disconnect(connection.meter)

    def renew(self, connection: ClientConnection) -> None:
        """After a change of users, tokens or rules: update the client's rights, or disconnect it."""
        if not connection.greeted or connection.refusal is not None:
            return
        principal = connection.principal
        renewed: Principal | None
        if isinstance(principal, AuthenticatedPrincipal):
            renewed = self._guard.access.renewed(principal)
        else:
            # It connected while authentication was not configured.
            renewed = None if self._guard.everybody is None else principal
        if renewed is None:
            connection.revoke(AuthenticationError("the credentials were revoked; connect again with others"))
        else:
            connection.renew(renewed)
            connection.allowance = self._guard.quotas.allowance_of(renewed)
            for state in connection.pushing.states():
                try:
                    state.use.require(renewed)
                except UseRefusedError as error:
                    self.note_refused(connection, _SUBSCRIBE, error)
                    connection.revoke(
                        NotAuthorizedError(f"{state.target!a} may not be subscribed to any more; connect again")
                    )
                    return
                state.restrict(shards_delivered(state.use, renewed))

    def producers_of(self, principal: Principal) -> str:
        """Prefix of the names of a principal's producers: no other principal can open them or append with them."""
        # User names contain no colon, so the first one ends the user name.
        return f"{principal.name}:" if self._guard.access.known.has_credentials else ""

    async def audited(self, connection: Connection, op: int, body: bytes, pending: Awaitable[None]) -> None:
        """Await an operation, and write it into the audit log if it is an administrative act."""
        if not self._guard.audit.is_kept or op not in AUDITED:
            await pending
            return

        def note(outcome: str) -> None:
            target = _target_of(op, body)
            is_repeated = op in _REPEATED and outcome in _NOT_FAILED
            write = self._guard.repeated_acts.write if is_repeated else self.record
            write(
                AuditEntry(
                    principal=connection.principal.name,
                    peer=connection.peer,
                    act=Op(op).name.lower(),
                    target=target.shard,
                    cursor=target.cursor,
                    outcome=outcome,
                )
            )

        with outcome_noted(note):
            await pending


def _target_of(op: int, body: bytes) -> _Target:
    try:
        target = AUDITED[op](decode_request(Op(op), body))
    except RemoteProtocolError:
        # The operation was refused because of that.
        return _Target()
    # Names that are too long are refused, and must not fill the log, or the memory of repeated acts, even so.
    return _Target(target.shard[:_MAX_TARGET_CHARACTERS], target.cursor[:_MAX_TARGET_CHARACTERS])


async def _end_at(connection: ClientConnection, time_s: float) -> None:
    # In short sleeps: a sleep does not notice that the machine was suspended or the clock was changed.
    while (left_s := time_s - time.time()) > 0:  # noqa: ASYNC110 there is no event for a time of day
        await trio.sleep(min(left_s, _LOOKED_AT_EVERY_S))
    connection.revoke(AuthenticationError("the token has expired; connect again with another"))
