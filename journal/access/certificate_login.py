"""The login method ``certificate``: the name in the certificate that a client has shown is its user."""

from __future__ import annotations

from typing import Final

import trio

from journal.access.logins import Attempt, Identity, Secret
from journal.access.users import check_name
from journal.net.certificate_names import CertificateField
from journal.protocol.errors import AuthenticationError


class CertificateLogin:
    """Accepts clients by their certificates, which TLS has verified.

    Attributes:
        field: The part of a certificate that has the name. It may be replaced: names from another part are not valid
            any more then.
    """

    kind: Final = "certificate"
    takes: Final = frozenset({Secret.CERTIFICATE})

    def __init__(self, field: CertificateField = CertificateField.COMMON_NAME) -> None:
        self.field = field

    async def check(self, attempt: Attempt, *, is_last: bool) -> Identity | None:
        """Accept a client with a certificate. A bearer token is left to other methods."""
        name = attempt.certificate_name
        if not name or attempt.token is not None:
            return None
        await trio.lowlevel.checkpoint()
        if attempt.user and attempt.user != name:
            raise AuthenticationError(
                f"the client certificate is of {name!a}, not of the user that was given; give that user or none"
            )
        try:
            check_name(name)
        except ValueError as error:
            raise AuthenticationError(f"the client certificate {error}; use another one") from error
        return Identity(name, self.kind, self.field)

    def still_accepts(self, identity: Identity) -> bool:
        """Whether names are still taken from the same part of a certificate."""
        return identity.proof is self.field

    def may_know(self, name: str) -> bool:
        """Whether a certificate may have this name."""
        return bool(name)
