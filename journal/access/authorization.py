"""The door to access control: who a peer is, and what it may do. Every way into a server asks here and nowhere else.

What stands behind it, passwords, tokens, certificates and rules, is `journal.access.authenticator`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

import attrs

from journal.protocol.errors import NotAuthorizedError


class Action(enum.StrEnum):
    """What a principal does with a shard, or with all shards that match a filter."""

    APPEND = "append"
    READ = "read"
    SUBSCRIBE = "subscribe"
    ADMINISTER = "administer"


class Principal(Protocol):
    """Who a peer turned out to be.

    Attributes:
        name: The user; empty for a peer that gave no name where none is asked for.
    """

    @property
    def name(self) -> str: ...

    def may(self, action: Action, target: str) -> bool:
        """Whether it may do something.

        Args:
            action: What.
            target: Name of a shard. Of a topic filter the answer is whether it may with all that matches it.
        """

    def may_somewhere(self, action: Action) -> bool:
        """Whether there is any shard that it may do something with."""


class Access(Protocol):
    """Decides who a peer is."""

    async def authenticate(
        self, credentials: Mapping[str, str] | None, peer: str, certificate_name: str = ""
    ) -> Principal:
        """Find out who a peer is.

        Args:
            credentials: What it gave: ``{"token": ...}``, or ``{"user": ..., "password": ...}``, or nothing.
            peer: Where it is, ``HOST:PORT``: who guesses is slowed down.
            certificate_name: Common name of the client certificate that the peer showed, if it did; TLS has checked
                it. Never what the peer says of itself.

        Raises:
            AuthenticationError: It is nobody.
        """


class _Everybody:
    """A peer of a server that asks nobody who they are."""

    name = ""

    def may(self, action: Action, target: str) -> bool:
        return True

    def may_somewhere(self, action: Action) -> bool:
        return True


EVERYBODY: Principal = _Everybody()


@attrs.frozen(slots=True)
class SentAway:
    """A principal whose credentials or rights were taken away, until its connection has ended.

    Attributes:
        name: Who it was.
    """

    name: str

    def may(self, action: Action, target: str) -> bool:
        """Nothing."""
        return False

    def may_somewhere(self, action: Action) -> bool:
        """Nothing."""
        return False


def require(principal: Principal, target: str, *actions: Action) -> None:
    """Refuse what a principal may not do; any one of the actions is enough.

    Raises:
        NotAuthorizedError: It may do none of them.
    """
    if not any(principal.may(action, target) for action in actions):
        who = f"principal {principal.name!a}" if principal.name else "a principal without a name"
        raise NotAuthorizedError(
            f"{who} may not {' or '.join(actions)} {target!a}; have it allowed in the server's access rules"
        )


def require_somewhere(principal: Principal, action: Action) -> None:
    """Refuse what is of use only to a principal that may do something with some shard.

    Raises:
        NotAuthorizedError: It may with none.
    """
    if not principal.may_somewhere(action):
        who = f"principal {principal.name!a}" if principal.name else "a principal without a name"
        raise NotAuthorizedError(f"{who} may not {action} to any topic; have it allowed in the server's access rules")
