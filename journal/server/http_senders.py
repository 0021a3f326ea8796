"""Which principal an Authorization header was valid for, so that its requests count for the principal.

The rate of requests over HTTP is limited before a request is looked at, by its address, since checking a password costs
more than most requests. A principal whose credentials were valid a moment ago has a rate of its own instead: others at
the same address do not use it up, and several addresses do not multiply it. This decides about the rate alone; each
request is authenticated.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

_REMEMBERED: Final = 10_000


class HttpSenders:
    """See the module.

    Args:
        rate_of: Returns how many requests in a second a principal may send.
    """

    def __init__(self, rate_of: Callable[[str], int]) -> None:
        self.rate_of = rate_of
        # Only digests are kept, with a random key, so that memory that is read by mistake shows no credentials.
        self._key = secrets.token_bytes(16)
        self._names: dict[bytes, str] = {}

    def valid(self, authorization: str, name: str) -> None:
        """Note that a header was valid for a principal."""
        digest = self._digest(authorization.encode("latin-1"))
        self._names.pop(digest, None)
        if len(self._names) >= _REMEMBERED:
            del self._names[next(iter(self._names))]
        self._names[digest] = name

    def invalid(self, authorization: str) -> None:
        """Note that a header is not valid."""
        self._names.pop(self._digest(authorization.encode("latin-1")), None)

    def name_of(self, authorization: bytes) -> str | None:
        """The principal whose credentials were in a header; None if they were not checked, or not valid."""
        return self._names.get(self._digest(authorization))

    def _digest(self, authorization: bytes) -> bytes:
        return hashlib.blake2b(authorization, key=self._key, digest_size=16).digest()
