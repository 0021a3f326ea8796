"""The login methods that a program has, arranged as its credentials and settings say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import trio

from journal.access.authentication import Authentication
from journal.access.certificate_login import CertificateLogin
from journal.access.http_login import HttpLogin, HttpLoginSettings
from journal.access.jwt_login import JwtLogin, JwtSettings
from journal.access.login_chain import LoginChain, LoginCounts, Step
from journal.access.logins import Attempt, Identity, LoginMethod, LoginStep
from journal.access.password_login import PasswordLogin
from journal.access.token_login import TokenLogin
from journal.access.tokens import Tokens
from journal.access.users import Users
from journal.net.certificate_names import CertificateField

_WAYS: Final = {
    PasswordLogin.kind: "a user and a password",
    TokenLogin.kind: "a token",
    CertificateLogin.kind: "a client certificate",
    JwtLogin.kind: "a JSON Web Token",
    HttpLogin.kind: "what the web service of logins accepts",
}


_GIVE_RIGHTS: Final = frozenset({JwtLogin.kind, HttpLogin.kind})


@attrs.frozen(slots=True, kw_only=True)
class Credentials:
    """All that clients can log in with; replaced as a whole.

    Attributes:
        users: None without a password file.
        tokens: None without a file of tokens.
        certificates: Whether the names in client certificates, which TLS verifies, are user names.
        certificate_field: The part of a client certificate that has the name.
        jwt: How JSON Web Tokens are checked; None if they are not accepted.
        http: How a web service is asked about clients; None if none is.
        order: The login methods in their order; None for all that are configured, certificates last.
    """

    users: Users | None = None
    tokens: Tokens | None = None
    certificates: bool = False
    certificate_field: CertificateField = CertificateField.COMMON_NAME
    jwt: JwtSettings | None = None
    http: HttpLoginSettings | None = None
    order: tuple[LoginStep, ...] | None = None

    @property
    def has_credentials(self) -> bool:
        """Whether any kind of credentials is configured."""
        return bool(self.steps)

    def strangers_among(self, names: Iterable[str]) -> list[str]:
        """Those names that no user and no token has, sorted; none if clients log in with names from elsewhere, too."""
        kinds = {step.kind for step in self.steps}
        if not kinds or kinds - {TokenLogin.kind, PasswordLogin.kind}:
            return []
        known = {name for kept in (self.users, self.tokens) if kept is not None for name in kept.names}
        return sorted({name for name in names if name and name not in known})

    @property
    def steps(self) -> tuple[LoginStep, ...]:
        """The login methods in their order."""
        if self.order is not None:
            return self.order
        kinds = {
            TokenLogin.kind: self.tokens is not None,
            JwtLogin.kind: self.jwt is not None,
            HttpLogin.kind: self.http is not None,
            PasswordLogin.kind: self.users is not None,
            # A client with a certificate may log in as another user, with a password or a token.
            CertificateLogin.kind: self.certificates,
        }
        return tuple(LoginStep(kind) for kind, is_configured in kinds.items() if is_configured)

    @property
    def ways(self) -> str:
        """What a client has to send, for messages."""
        kinds = {step.kind for step in self.steps}
        return " or ".join(way for kind, way in _WAYS.items() if kind in kinds)


class Logins:
    """Authenticates clients.

    Args:
        credentials: See the attribute.
        clock: Seconds, never going backwards.
        time_s: Seconds since 1970.

    Attributes:
        credentials: What clients can log in with. It may be replaced; later logins use the new ones.
        jwt: The method that accepts JSON Web Tokens.
        http: The method that asks a web service.
    """

    def __init__(
        self,
        credentials: Credentials,
        clock: Callable[[], float] = trio.current_time,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self._passwords = PasswordLogin(Authentication(credentials.users, clock))
        self._tokens = TokenLogin(credentials.tokens, clock, time_s)
        self._certificates = CertificateLogin(credentials.certificate_field)
        self.jwt = JwtLogin(credentials.jwt)
        self.http = HttpLogin(credentials.http, clock, time_s)
        methods: Iterable[LoginMethod] = (self._passwords, self._tokens, self._certificates, self.jwt, self.http)
        self._methods = {method.kind: method for method in methods}
        self._chain = LoginChain()
        for kind in self._methods:
            # A series whose first value comes with its first event hides that event.
            self.counts.accepted[kind] = self.counts.refused[kind] = 0
        self.credentials = credentials

    @property
    def credentials(self) -> Credentials:
        """What clients can log in with."""
        return self._credentials

    @credentials.setter
    def credentials(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._passwords.authentication.users = credentials.users
        self._tokens.tokens = credentials.tokens
        self._certificates.field = credentials.certificate_field
        self.jwt.settings = credentials.jwt
        self.http.settings = credentials.http
        self._chain.arrange(Step(self._methods[step.kind], step.denied) for step in credentials.steps)

    @property
    def counts(self) -> LoginCounts:
        """What was decided since the start."""
        return self._chain.counts

    async def run(self) -> None:
        """Do what methods have to do in the background, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.jwt.run)
            nursery.start_soon(self.http.run)

    async def authenticate(self, attempt: Attempt) -> Identity | None:
        """Who a client is; None if no method decides about what it sent.

        Raises:
            AuthenticationError: It is refused. The message goes to the client.
        """
        return await self._chain.authenticate(attempt)

    def is_still_known(self, identity: Identity) -> bool:
        """Whether a client would still be accepted with the same credentials, by the method that accepted it."""
        return self._chain.is_still_known(identity)

    def may_give_rights(self, name: str) -> bool:
        """Whether a user of this name may have roles or rules by its login."""
        return self._chain.may_know(name, kinds=_GIVE_RIGHTS)

    def may_know(self, name: str) -> bool:
        """Whether any method may accept a user of this name."""
        return self._chain.may_know(name)
