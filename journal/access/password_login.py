"""The login method ``users``: user names and passwords of the file that `journal passwd` writes."""

from __future__ import annotations

from typing import Final

from journal.access.authentication import Authentication
from journal.access.logins import Attempt, Identity, Secret
from journal.protocol.errors import AuthenticationError


class PasswordLogin:
    """Accepts clients by passwords.

    Args:
        authentication: Checks passwords, and has the users.
    """

    kind: Final = "users"
    takes: Final = frozenset({Secret.PASSWORD})

    def __init__(self, authentication: Authentication) -> None:
        self.authentication = authentication

    async def check(self, attempt: Attempt, *, is_last: bool) -> Identity | None:
        """Accept a client with the right password.

        A name that is not in the file is left to later methods without a check: then the time of the answer tells that
        there is no such user here.
        """
        users = self.authentication.users
        name = attempt.user or ""
        is_unknown = users is None or users.hash_of(name) is None
        if not name or attempt.password is None or (is_unknown and not is_last):
            return None
        if not await self.authentication.check(name, attempt.password, attempt.host):
            raise AuthenticationError(
                "wrong user name or password, or too many wrong ones from this address recently: then wait a minute"
            )
        # After a reload in the meantime, the client is accepted only if the password is unchanged.
        accepted = Identity(name, self.kind, users.hash_of(name) if users is not None else None)
        if not self.still_accepts(accepted):
            raise AuthenticationError("the password was changed during the login; connect again")
        return accepted

    def still_accepts(self, identity: Identity) -> bool:
        """Whether the user exists, with the same password."""
        users = self.authentication.users
        return users is not None and identity.proof is not None and users.hash_of(identity.name) == identity.proof

    def may_know(self, name: str) -> bool:
        """Whether the user exists."""
        users = self.authentication.users
        return users is not None and users.hash_of(name) is not None
