"""The login method ``tokens``: bearer tokens of the file that `journal token` writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import trio

from journal.access.authentication import FailedAttempts, network_of
from journal.access.logins import Attempt, Identity, Secret
from journal.access.tokens import TokenHash, Tokens
from journal.protocol.errors import AuthenticationError


class TokenLogin:
    """Accepts clients by tokens.

    Args:
        tokens: See the attribute.
        clock: Seconds, never going backwards.
        time_s: Seconds since 1970.

    Attributes:
        tokens: The stored parts of all tokens; it may be replaced.
    """

    kind: Final = "tokens"
    takes: Final = frozenset({Secret.TOKEN})

    def __init__(
        self,
        tokens: Tokens | None,
        clock: Callable[[], float] = trio.current_time,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        self.tokens = tokens
        self._clock = clock
        self._time_s = time_s
        # A token of 2^256 cannot be guessed, so a right one is accepted whatever was tried before. Clients that
        # continue with wrong ones get another error.
        self._by_network = FailedAttempts(free_failures=30, first_s=1, longest_s=60)

    async def check(self, attempt: Attempt, *, is_last: bool) -> Identity | None:
        """Accept a client with a known token."""
        if attempt.token is None:
            return None
        kept = self.tokens.find(attempt.token) if self.tokens is not None else None
        if kept is None and not is_last:
            return None
        await trio.lowlevel.checkpoint()
        if kept is None:
            network, now = network_of(attempt.host), self._clock()
            if self._by_network.must_wait(network, now):
                raise AuthenticationError("too many wrong tokens from there; wait a minute")
            self._by_network.failed(network, now)
            raise AuthenticationError("the token is not known to this server; `journal token FILE USER` creates one")
        if kept.expires_at_s is not None and kept.expires_at_s <= self._time_s():
            raise AuthenticationError(
                f"the token of {kept.name!a} expired at {_moment(kept.expires_at_s)}; `journal token FILE USER` "
                "creates a new one"
            )
        return Identity(kept.name, self.kind, kept, kept.expires_at_s)

    def still_accepts(self, identity: Identity) -> bool:
        """Whether the token is still stored, with the same name and expiry."""
        return self.tokens is not None and isinstance(identity.proof, TokenHash) and self.tokens.holds(identity.proof)

    def may_know(self, name: str) -> bool:
        """Whether a token may be of this user; the names are not searched."""
        return self.tokens is not None


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
