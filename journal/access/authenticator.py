"""Implementation of `authorization`: the logins of a server in their order, and access rules.

The server accepts the connections, and decides which rights an operation needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from journal.access.authorization import Action, Resource
from journal.access.login_methods import Credentials, Logins
from journal.access.logins import Attempt, Identity
from journal.access.rules import NO_GRANTS, AccessRules, Permissions, User
from journal.protocol.errors import AuthenticationError

_TOKEN: Final = "token"  # noqa: S105 the name of a field
_USER: Final = "user"
_PASSWORD: Final = "password"  # noqa: S105 the name of a field


@attrs.frozen(slots=True)
class Known(Credentials):
    """All credentials and rules; replaced as a whole.

    Attributes:
        anonymous: Whether peers without credentials are accepted although credentials are configured.
    """

    rules: AccessRules
    anonymous: bool = False


@attrs.frozen(slots=True, eq=False)
class AuthenticatedPrincipal:
    """An authenticated principal.

    Attributes:
        name: The user name; empty for an anonymous peer.
        identity: Its login, which a reload may revoke; None for an anonymous peer.
    """

    name: str
    permissions: Permissions = attrs.field(repr=False)
    identity: Identity | None = attrs.field(default=None, repr=False)

    @property
    def expires_at_s(self) -> float | None:
        """Seconds since 1970 at which its login ends; None for no end."""
        return None if self.identity is None else self.identity.expires_at_s

    def may(self, action: Action, resource: Resource, name: str) -> bool:
        """Whether it may do an action; see `authorization.Principal`."""
        match resource:
            case Resource.SHARD:
                return self.permissions.may_topic(action, name)
            case Resource.FILTER:
                return self.permissions.may(action, name)
            case Resource.PARTIAL_FILTER:
                return self.permissions.may_except(action, name)
            case Resource.SOMEWHERE:
                return self.permissions.may_somewhere(action)
            case _:
                return self.permissions.may_named(action, resource, name)


class Authenticator:
    """Authenticates peers.

    Args:
        known: See the attribute.
        clock: Seconds, never going backwards.
        time_s: Seconds since 1970.

    Attributes:
        known: The credentials and rules. It may be replaced; later logins use the new ones.
        logins: The login methods; their `run` has to run.
    """

    def __init__(
        self, known: Known, clock: Callable[[], float] = trio.current_time, time_s: Callable[[], float] = time.time
    ) -> None:
        self.logins = Logins(known, clock, time_s)
        self._known = known

    @property
    def known(self) -> Known:
        """The credentials and rules."""
        return self._known

    @known.setter
    def known(self, known: Known) -> None:
        self._known = self.logins.credentials = known

    async def authenticate(
        self, credentials: Mapping[str, str] | None, peer: str, certificate_name: str = ""
    ) -> AuthenticatedPrincipal:
        """Authenticate a peer; see `authorization.Access`."""
        given = credentials or {}
        if not self._known.has_credentials:
            # Nothing is configured to check the credentials against, so they are ignored.
            await trio.lowlevel.checkpoint()
            return self._admitted("")
        password = given.get(_PASSWORD)
        identity = await self.logins.authenticate(
            Attempt(
                peer,
                given.get(_USER),
                # Anything that a peer sends can be checked, even if it is not text.
                None if password is None or _TOKEN in given else password.encode(errors="surrogatepass"),
                given.get(_TOKEN),
                certificate_name=certificate_name,
            )
        )
        if identity is not None:
            return self._admitted(identity.name, identity)
        if self._known.anonymous and not given:
            return self._admitted("")
        raise AuthenticationError(f"no credentials: this server requires {self._known.ways}")

    def _admitted(self, name: str, identity: Identity | None = None) -> AuthenticatedPrincipal:
        grants = NO_GRANTS if identity is None else identity.grants
        return AuthenticatedPrincipal(name, self._known.rules.permissions_of(User(name, grants=grants)), identity)

    def is_still_known(self, admitted: AuthenticatedPrincipal) -> bool:
        """Whether an authenticated principal would still be accepted with the same credential."""
        if admitted.identity is not None:
            return self.logins.is_still_known(admitted.identity)
        return self._known.anonymous or not self._known.has_credentials

    def renewed(self, admitted: AuthenticatedPrincipal) -> AuthenticatedPrincipal | None:
        """The same principal with the present rights; None if it would not be accepted any more."""
        if not self.is_still_known(admitted):
            return None
        return self._admitted(admitted.name, admitted.identity)
