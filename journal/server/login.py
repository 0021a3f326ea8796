"""From HELLO to a principal with rights and quotas, and what else of an operation depends on who asks for it.

What each operation needs is said where it is carried out, in `operations`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from typing import Final

import attrs
import msgspec
import trio

from journal.access.authenticator import Admitted
from journal.access.authorization import Action, Principal
from journal.access.quotas import Meter
from journal.protocol.errors import AuthenticationError, NotAuthorizedError
from journal.protocol.frames import Op
from journal.server.connection import Connection
from journal.server.open_connections import Served
from journal.server.security import Security
from journal.server.stored_quotas import StoredQuotas
from shards.errors import StorageError

_AUDITED: Final = frozenset(
    {
        Op.SNAPSHOT,
        Op.CREATE_SHARD,
        Op.DELETE_SHARD,
        Op.SET_MODE,
        Op.CONFIGURE_SHARD,
        Op.SEAL,
        Op.TRIM,
        Op.CURSOR_DELETE,
    }
)
_STATE: Final = "$state/"
_MAX_TARGET_CHARACTERS: Final = 1024
_LOOKED_AT_EVERY_S: Final = 30.0


@attrs.frozen(slots=True)
class _Named:
    """What the audit log wants to know of a body."""

    name: str = ""
    shard: str = ""


_named: Final = msgspec.msgpack.Decoder(_Named)


class Login:
    """Lets clients in and says on which terms.

    Args:
        guard: Who there is.
        stored: How much their shards hold.
    """

    def __init__(self, guard: Security, stored: StoredQuotas) -> None:
        self._guard = guard
        self._stored = stored

    @property
    def everybody(self) -> Principal | None:
        """Who everybody is, where nobody is asked; None elsewhere."""
        return self._guard.everybody

    @property
    def asks(self) -> bool:
        """Whether nobody gets in who gives nothing."""
        known = self._guard.access.known
        return known.has_credentials and not known.anonymous

    async def admit(self, connection: Served, client: str, credentials: Mapping[str, str] | None) -> None:
        """Greet a client as who it is.

        Args:
            connection: Where it is.
            client: The name that it gives itself.
            credentials: What it gave to be let in.

        Raises:
            AuthenticationError: It is nobody.
            QuotaExceededError: It has too many connections.
        """
        access = self._guard.access
        principal = await self._authenticate(credentials, connection.peer, connection.certificate_name)
        meter = self._guard.quotas.meter_of(principal.name)
        if meter is not None:
            await self._stored.measure(meter.accounts)
        # A check of a password runs to its end also when the connection is gone, which would never be counted out.
        await trio.lowlevel.checkpoint_if_cancelled()
        # Nothing may come between these: what was found out must still hold.
        renewed = access.renewed(principal)
        if renewed is None:
            raise AuthenticationError("the credentials were taken away at this moment")
        connection.greet(client, renewed, self._guard.quotas.connect(principal.name))
        if principal.expires_at_s is not None:
            connection.nursery.start_soon(_end_at, connection, principal.expires_at_s)

    async def identify(self, credentials: Mapping[str, str] | None, peer: str) -> tuple[Principal, Meter | None]:
        """Find out who sent a request that belongs to no connection, and what it is counted on.

        Raises:
            AuthenticationError: It is nobody.
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
    ) -> Admitted:
        try:
            return await self._guard.access.authenticate(credentials, peer, certificate_name)
        except AuthenticationError:
            self.refused(credentials, peer)
            raise

    def refused(self, credentials: Mapping[str, str] | None, peer: str) -> None:
        """Keep a record of somebody who was not let in."""
        name = (credentials or {}).get("user", "")
        users = self._guard.access.known.users
        is_known = users is not None and users.hash_of(name) is not None
        self._guard.refused_logins.write(user=name if is_known else "", peer=peer)

    def record(self, *, principal: str, peer: str, act: str, target: str, outcome: str) -> None:
        """Keep a record of an administrative act."""
        self._guard.audit.write(
            principal=principal, peer=peer, act=act, target=target[:_MAX_TARGET_CHARACTERS], outcome=outcome
        )

    def leave(self, connection: Served) -> None:
        """The connection is closed."""
        if connection.meter is not None:
            self._guard.quotas.disconnect(connection.meter)

    def renew(self, connection: Served) -> None:
        """Users, tokens or rules have changed: see whether a client may stay, and with which rights."""
        if not connection.greeted or connection.refusal is not None:
            return
        principal = connection.principal
        renewed: Principal | None
        if isinstance(principal, Admitted):
            renewed = self._guard.access.renewed(principal)
        else:
            # It came in when nobody was asked.
            renewed = None if self._guard.everybody is None else principal
        if renewed is None:
            connection.revoke(AuthenticationError("the credentials were taken away; connect again with others"))
        else:
            connection.renew(renewed)
            for state in connection.pushing.states():
                if not renewed.may(Action.SUBSCRIBE, state.target):
                    connection.revoke(
                        NotAuthorizedError(f"{state.target!a} may be subscribed to no longer; connect again")
                    )
                    return

    def producers_of(self, principal: Principal) -> str:
        """How the names of a principal's producers begin: nobody can open, or send for, those of another."""
        # No user has a colon in its name, so the first one ends it.
        return f"{principal.name}:" if self._guard.access.known.has_credentials else ""

    async def audited(self, connection: Connection, op: int, body: bytes, pending: Awaitable[None]) -> None:
        """Wait for an operation, and keep a record of it if it is an administrative act."""
        audit = self._guard.audit
        if not audit.is_kept or op not in _AUDITED:
            await pending
            return
        outcome = "internal_error"
        try:
            await pending
            outcome = "ok"
        except StorageError as error:
            outcome = error.code
            raise
        except trio.Cancelled:
            outcome = "unknown"
            raise
        finally:
            audit.write(
                principal=connection.principal.name,
                peer=connection.peer,
                act=Op(op).name.lower(),
                target=_target_of(body),
                outcome=outcome,
            )


def _target_of(body: bytes) -> str:
    try:
        named = _named.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # It was refused for that.
        return ""
    return (named.shard or named.name)[:_MAX_TARGET_CHARACTERS]


async def _end_at(connection: Served, time_s: float) -> None:
    # Now and then, not once: what sleeps does not notice that the machine was suspended or its clock set.
    while (left_s := time_s - time.time()) > 0:  # noqa: ASYNC110 there is no event for what the clock says
        await trio.sleep(min(left_s, _LOOKED_AT_EVERY_S))
    connection.revoke(AuthenticationError("the token has expired; connect again with another"))


def state_target(key: bytes) -> str:
    """What stands for a key of the state store where rules are asked."""
    return _STATE + key.decode(errors="backslashreplace")


def scan_target(prefix: bytes) -> str:
    """What stands for all keys with a prefix: all below its last level."""
    above, slash, _ = prefix.rpartition(b"/")
    return state_target(above + slash) + "#"
