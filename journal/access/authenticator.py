"""Implementation of `authorization`: passwords, tokens and client certificates of a server, and access rules.

The server accepts the connections, and decides which rights an operation needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import attrs
import trio

from journal.access.authentication import Authentication, FailedAttempts, network_of
from journal.access.authorization import Action, Resource
from journal.access.rules import AccessRules, Permissions, User
from journal.access.tokens import TokenHash, Tokens
from journal.access.users import PasswordHash, Users, check_name
from journal.protocol.errors import AuthenticationError

_TOKEN: Final = "token"  # noqa: S105 the name of a field
_USER: Final = "user"
_PASSWORD: Final = "password"  # noqa: S105 the name of a field


@attrs.frozen(slots=True)
class Known:
    """All credentials and rules; replaced as a whole.

    Attributes:
        users: None without a password file.
        tokens: None without a file of tokens.
        certificates: Whether TLS verifies client certificates, whose common names are user names then.
        anonymous: Whether peers without credentials are accepted although credentials are configured.
    """

    rules: AccessRules
    users: Users | None = None
    tokens: Tokens | None = None
    certificates: bool = False
    anonymous: bool = False

    @property
    def has_credentials(self) -> bool:
        """Whether any kind of credentials is configured."""
        return self.users is not None or self.tokens is not None or self.certificates


@attrs.frozen(slots=True, eq=False)
class AuthenticatedPrincipal:
    """An authenticated principal.

    Attributes:
        name: The user name; empty for an anonymous peer.
        proof: The credential that was used, which a reload may revoke: the stored part of its password or token, None
            for a certificate. Without meaning where `name` is empty.
        expires_at_s: Seconds since 1970 at which its token expires; None for no expiry.
    """

    name: str
    permissions: Permissions = attrs.field(repr=False)
    proof: PasswordHash | TokenHash | None = attrs.field(default=None, repr=False)
    expires_at_s: float | None = None

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
    """

    def __init__(
        self, known: Known, clock: Callable[[], float] = trio.current_time, time_s: Callable[[], float] = time.time
    ) -> None:
        self._known = known
        self._clock = clock
        self._time_s = time_s
        self._passwords = Authentication(known.users, clock)
        # A token of 2^256 cannot be guessed, so a right one is accepted whatever was tried before. Clients that
        # continue with wrong ones get another error.
        self._by_network = FailedAttempts(free_failures=30, first_s=1, longest_s=60)

    @property
    def known(self) -> Known:
        """The credentials and rules."""
        return self._known

    @known.setter
    def known(self, known: Known) -> None:
        self._known = known
        self._passwords.users = known.users

    async def authenticate(
        self, credentials: Mapping[str, str] | None, peer: str, certificate_name: str = ""
    ) -> AuthenticatedPrincipal:
        """Authenticate a peer; see `authorization.Access`."""
        known = self._known
        given = credentials or {}
        if not known.has_credentials:
            # Nothing is configured to check the credentials against, so they are ignored.
            await trio.lowlevel.checkpoint()
            return self._admitted("")
        host = peer.rpartition(":")[0]
        if _TOKEN in given:
            await trio.lowlevel.checkpoint()
            return self._by_token(given[_TOKEN], host)
        if _PASSWORD in given:
            return await self._by_password(given.get(_USER, ""), given[_PASSWORD], host)
        await trio.lowlevel.checkpoint()
        if known.certificates and certificate_name:
            if given.get(_USER, certificate_name) != certificate_name:
                raise AuthenticationError(
                    f"the client certificate is of {certificate_name!a}, not of the user that was given; "
                    "give that user or none"
                )
            try:
                check_name(certificate_name)
            except ValueError as error:
                raise AuthenticationError(f"the client certificate {error}; use another one") from error
            return self._admitted(certificate_name)
        if known.anonymous and not given:
            return self._admitted("")
        raise AuthenticationError("no credentials: " + _way_out(known))

    def _by_token(self, token: str, host: str) -> AuthenticatedPrincipal:
        kept = self._known.tokens.find(token) if self._known.tokens is not None else None
        if kept is None:
            network, now = network_of(host), self._clock()
            if self._by_network.must_wait(network, now):
                raise AuthenticationError("too many wrong tokens from there; wait a minute")
            self._by_network.failed(network, now)
            raise AuthenticationError("the token is not known to this server; `journal token FILE USER` creates one")
        if kept.expires_at_s is not None and kept.expires_at_s <= self._time_s():
            raise AuthenticationError(
                f"the token of {kept.name!a} expired at {_moment(kept.expires_at_s)}; `journal token FILE USER` "
                "creates a new one"
            )
        return self._admitted(kept.name, kept, kept.expires_at_s)

    async def _by_password(self, name: str, password: str, host: str) -> AuthenticatedPrincipal:
        users = self._known.users
        # Anything that a peer sends can be checked, even if it is not text.
        secret = password.encode(errors="surrogatepass")
        if not await self._passwords.check(name, secret, host):
            raise AuthenticationError(
                "wrong user name or password, or too many wrong ones from this address recently: then wait a minute"
            )
        # After a reload in the meantime, the principal is valid only if its password is unchanged.
        admitted = self._admitted(name, users.hash_of(name) if users is not None else None)
        if not self.is_still_known(admitted):
            raise AuthenticationError("the password was changed during the login; connect again")
        return admitted

    def _admitted(
        self, name: str, proof: PasswordHash | TokenHash | None = None, expires_at_s: float | None = None
    ) -> AuthenticatedPrincipal:
        return AuthenticatedPrincipal(name, self._known.rules.permissions_of(User(name)), proof, expires_at_s)

    def is_still_known(self, admitted: AuthenticatedPrincipal) -> bool:
        """Whether an authenticated principal would still be accepted with the same credential."""
        known, proof = self._known, admitted.proof
        if isinstance(proof, PasswordHash):
            return known.users is not None and known.users.hash_of(admitted.name) == proof
        if isinstance(proof, TokenHash):
            return known.tokens is not None and known.tokens.holds(proof)
        if admitted.name:
            return known.certificates
        return known.anonymous or not known.has_credentials

    def renewed(self, admitted: AuthenticatedPrincipal) -> AuthenticatedPrincipal | None:
        """The same principal with the present rights; None if it would not be accepted any more."""
        if not self.is_still_known(admitted):
            return None
        return self._admitted(admitted.name, admitted.proof, admitted.expires_at_s)


def _way_out(known: Known) -> str:
    ways = [
        way
        for way, is_open in (
            ("a user and a password", known.users is not None),
            ("a token", known.tokens is not None),
            ("a client certificate", known.certificates),
        )
        if is_open
    ]
    return f"this server requires {' or '.join(ways)}"


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
