"""The login method ``jwt``: JSON Web Tokens of an issuer, as bearer token or in the place of a password.

The checks are in `json_web_tokens`, which is imported only where the method is configured: it needs the extra
``logins``.
"""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from journal.access.key_statistics import KeyStatistics
from journal.access.login_grants import grants_of
from journal.access.logins import Attempt, Identity, Secret
from journal.access.users import check_name
from journal.protocol.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from journal.access.json_web_keys import KeySet, WebKey
    from journal.access.key_source import KeyAddress, KeySource

_MAX_TOKEN_BYTES: Final = 16 * 1024
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
_NEVER_S: Final = 1 << 40
_REFUSED: Final = "the token is not accepted; the log of the server says why"

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@attrs.frozen(slots=True)
class JwtSettings:
    """How tokens are checked.

    Attributes:
        audience: A token must be for one of these.
        issuer: The issuer that it must name; empty for any.
        user_claim: The claim that has the user.
        roles_claim: The claim that has roles; a token may lack it.
        rules_claim: The claim that has rules; a token may lack it.
        leeway_s: How much the clocks of the issuer and of this machine may differ, in seconds.
        keys: The keys, where they come from a file.
        address: Where they are fetched, otherwise.
        tls: Authorities of the certificate of `address`.
    """

    audience: tuple[str, ...]
    issuer: str = ""
    user_claim: str = "sub"
    roles_claim: str = "journal_roles"
    rules_claim: str = "journal_rules"
    leeway_s: int = 30
    keys: KeySet | None = attrs.field(default=None, repr=False, eq=False)
    address: KeyAddress | None = None
    tls: ssl.SSLContext | bool = attrs.field(default=False, repr=False, eq=False)


@attrs.frozen(slots=True)
class _Proof:
    """What a token was accepted by.

    Attributes:
        key: The fingerprint of its key.
        issuer: The issuer that it names.
        audience: The audience that it names.
    """

    key: bytes = attrs.field(repr=False)
    issuer: object
    audience: frozenset[str]


class JwtLogin:
    """Accepts clients by JSON Web Tokens.

    Args:
        settings: See the attribute.

    Attributes:
        settings: None if the method is not configured. It may be replaced; keys that were fetched from the same address
            are kept.
        statistics: Counts fetches of keys.
    """

    kind: Final = "jwt"
    takes: Final = frozenset({Secret.PASSWORD, Secret.TOKEN})

    def __init__(self, settings: JwtSettings | None = None) -> None:
        self._source: KeySource | None = None
        self._changed = trio.Event()
        self.statistics = KeyStatistics()
        self.settings = settings

    @property
    def settings(self) -> JwtSettings | None:
        """How tokens are checked."""
        return self._settings

    @settings.setter
    def settings(self, settings: JwtSettings | None) -> None:
        self._settings = settings
        address = None if settings is None else settings.address
        if settings is None or address is None:
            self._source = None
        elif self._source is None or self._source.address != address:
            from journal.access.key_source import KeySource

            self._source = KeySource(address, settings.tls, self.statistics)
        self._changed.set()

    @property
    def keys(self) -> KeySet | None:
        """The present keys."""
        if self._source is not None:
            return self._source.keys
        return None if self._settings is None else self._settings.keys

    @property
    def key_count(self) -> int:
        """Number of the present keys."""
        return 0 if self.keys is None else len(self.keys)

    async def run(self) -> None:
        """Fetch keys until cancelled."""
        while True:
            changed = self._changed = trio.Event()
            async with trio.open_nursery() as nursery:
                source = self._source
                if source is not None:
                    nursery.start_soon(source.run)
                while self._source is source:
                    await changed.wait()
                    changed = self._changed = trio.Event()
                nursery.cancel_scope.cancel()

    async def check(self, attempt: Attempt, *, is_last: bool) -> Identity | None:
        """Accept a client with a valid token of its user."""
        settings, token = self._settings, _token_of(attempt)
        if settings is None or token is None:
            return None
        from journal.access.json_web_tokens import TokenRefusedError

        try:
            claims, key = await self._claims_of(token, settings)
            return self._identity_of(claims, key, attempt, settings)
        except TokenRefusedError as error:
            reason = str(error)
            log.info("login refused", method=self.kind, peer=attempt.peer, client=attempt.shown_client, reason=reason)
            raise AuthenticationError(_REFUSED) from error

    async def _claims_of(self, token: str, settings: JwtSettings) -> tuple[Mapping[str, object], WebKey]:
        from journal.access.json_web_keys import KeyMissingError
        from journal.access.json_web_tokens import TokenRefusedError, claims_of

        keys = self.keys
        for is_again in (False, True):
            if keys is None:
                missing = "there are no keys of tokens yet"
                may_be_new = True
            else:
                try:
                    found = claims_of(
                        token,
                        keys,
                        audience=settings.audience,
                        issuer=settings.issuer,
                        leeway_s=settings.leeway_s,
                    )
                except KeyMissingError as error:
                    missing, may_be_new = str(error), error.may_be_new
                else:
                    await trio.lowlevel.checkpoint()
                    return found
            if is_again or not may_be_new or self._source is None:
                break
            keys = await self._source.newer_keys()
        raise TokenRefusedError(missing)

    def _identity_of(
        self, claims: Mapping[str, object], key: WebKey, attempt: Attempt, settings: JwtSettings
    ) -> Identity:
        from journal.access.json_web_tokens import TokenRefusedError, claim

        name = claim(claims, settings.user_claim)
        if not isinstance(name, str):
            raise TokenRefusedError(f"the claim {settings.user_claim} has no user name")
        try:
            check_name(name)
            grants = grants_of(claim(claims, settings.roles_claim), claim(claims, settings.rules_claim))
        except ValueError as error:
            raise TokenRefusedError(f"it cannot be used: {error}") from error
        if attempt.user and attempt.user != name:
            raise TokenRefusedError(f"it is of {name!a}, not of the user that was given")
        audience = claims["aud"]
        proof = _Proof(
            key.fingerprint,
            claims.get("iss"),
            frozenset([audience] if isinstance(audience, str) else audience),  # type: ignore[call-overload]
        )
        expires_at_s = min(int(claims["exp"]), _NEVER_S) + settings.leeway_s  # type: ignore[call-overload]
        return Identity(name, self.kind, proof, expires_at_s, grants)

    def still_accepts(self, identity: Identity) -> bool:
        """Whether the key of the token is still one of the issuer, and the issuer and the audience are the same."""
        settings, keys, proof = self._settings, self.keys, identity.proof
        if settings is None or keys is None or not isinstance(proof, _Proof):
            return False
        is_same_issuer = not settings.issuer or proof.issuer == settings.issuer
        return keys.has(proof.key) and is_same_issuer and bool(proof.audience & set(settings.audience))

    def may_know(self, name: str) -> bool:
        """Whether a token may have this user."""
        return self._settings is not None and bool(name)


def _token_of(attempt: Attempt) -> str | None:
    """What may be a JSON Web Token."""
    token = attempt.token
    if token is None and attempt.password is not None and len(attempt.password) <= _MAX_TOKEN_BYTES:
        token = attempt.password.decode("ascii", "replace")
    if token is None or len(token) > _MAX_TOKEN_BYTES or _TOKEN.fullmatch(token) is None:
        return None
    return token
