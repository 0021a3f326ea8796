"""The interface of access control: authenticating a peer, and its rights. All protocols of a server use it.

`journal.access.authenticator` implements it with passwords, tokens, certificates and rules.
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
    """An authenticated peer.

    Attributes:
        name: The user name; empty for a peer without one, where authentication is not required.
    """

    @property
    def name(self) -> str: ...

    def may(self, action: Action, target: str) -> bool:
        """Whether it may do an action.

        Args:
            action: The action.
            target: Name of a shard, or a topic filter; for a filter, whether it may for all that matches it.
        """

    def may_somewhere(self, action: Action) -> bool:
        """Whether there may be any shard with which it may do the action."""


class Access(Protocol):
    """Authenticates peers."""

    async def authenticate(
        self, credentials: Mapping[str, str] | None, peer: str, certificate_name: str = ""
    ) -> Principal:
        """Authenticate a peer.

        Args:
            credentials: The sent credentials: ``{"token": ...}``, or ``{"user": ..., "password": ...}``, or None.
            peer: Address of the peer, ``HOST:PORT``; repeated failures from there are delayed.
            certificate_name: Common name of the peer's client certificate, if it has one; verified by TLS, never taken
                from what the peer sent.

        Raises:
            AuthenticationError: The credentials are missing or not valid.
        """


class _Everybody:
    """A peer of a server without authentication."""

    name = ""

    def may(self, action: Action, target: str) -> bool:
        return True

    def may_somewhere(self, action: Action) -> bool:
        return True


EVERYBODY: Principal = _Everybody()


@attrs.frozen(slots=True)
class RevokedPrincipal:
    """A principal whose credentials or rights were revoked, until its connection has ended.

    Attributes:
        name: The former name.
    """

    name: str

    def may(self, action: Action, target: str) -> bool:
        """Return False."""
        return False

    def may_somewhere(self, action: Action) -> bool:
        """Return False."""
        return False


def require(principal: Principal, target: str, *actions: Action) -> None:
    """Raise an error unless a principal may do at least one of the actions.

    Raises:
        NotAuthorizedError: It may do none of them.
    """
    if not any(principal.may(action, target) for action in actions):
        who = f"principal {principal.name!a}" if principal.name else "a principal without a name"
        raise NotAuthorizedError(
            f"{who} may not {' or '.join(actions)} {target!a}; allow it in the server's access rules"
        )


def require_somewhere(principal: Principal, action: Action) -> None:
    """Raise an error unless a principal may do the action with some shard.

    Raises:
        NotAuthorizedError: It may not with any.
    """
    if not principal.may_somewhere(action):
        who = f"principal {principal.name!a}" if principal.name else "a principal without a name"
        raise NotAuthorizedError(f"{who} may not {action} to any topic; allow it in the server's access rules")
