"""The interface of access control: authenticating a peer, and its rights. All protocols of a server use it.

`journal.access.authenticator` implements it with passwords, tokens, certificates and rules. `journal.access.rights` has
the table of the rights that each operation needs.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

import attrs


class Action(enum.StrEnum):
    """What a principal does with an object."""

    APPEND = "append"
    READ = "read"
    SUBSCRIBE = "subscribe"
    ADMINISTER = "administer"


class Resource(enum.StrEnum):
    """The kinds of objects that an operation touches. Names of different kinds are never compared."""

    SHARD = "shard"
    FILTER = "filter"
    PARTIAL_FILTER = "filter except denied topics"
    GROUP = "group"
    CURSOR = "cursor"
    STATE = "state key"
    STATE_PREFIX = "state prefix"
    METRICS = "metrics"
    SOMEWHERE = "some shard"
    EVERYTHING = "all shards"
    BROKERS = "all brokers"


class Principal(Protocol):
    """An authenticated peer.

    Attributes:
        name: The user name; empty for a peer without one, where authentication is not required.
    """

    @property
    def name(self) -> str: ...

    def may(self, action: Action, resource: Resource, name: str) -> bool:
        """Whether it may do an action.

        Args:
            action: The action.
            resource: ``SHARD``, ``FILTER``, ``GROUP`` or ``CURSOR``; ``PARTIAL_FILTER``, for a caller that asks for
                each shard as well; or ``SOMEWHERE``, which asks whether there may be any shard with which it may.
            name: The name, or the filter: then whether it may for all shards that match, with ``PARTIAL_FILTER``
                whether a rule allows all of them, whatever other rules deny a part.
        """


class Access(Protocol):
    """Authenticates peers."""

    async def authenticate(
        self, credentials: Mapping[str, str] | None, peer: str, certificate_name: str = ""
    ) -> Principal:
        """Authenticate a peer.

        Args:
            credentials: The sent credentials: ``{"token": ...}``, or ``{"user": ..., "password": ...}``, or None.
            peer: Address of the peer, ``HOST:PORT``; repeated failures from there are delayed.
            certificate_name: The name in the peer's client certificate, if it has one; verified by TLS, never taken
                from what the peer sent.

        Raises:
            AuthenticationError: The credentials are missing or not valid.
        """


class _Everybody:
    """A peer of a server without authentication."""

    name = ""

    def may(self, action: Action, resource: Resource, name: str) -> bool:
        return True


EVERYBODY: Principal = _Everybody()


@attrs.frozen(slots=True)
class RevokedPrincipal:
    """A principal whose credentials or rights were revoked, until its connection has ended.

    Attributes:
        name: The former name.
    """

    name: str

    def may(self, action: Action, resource: Resource, name: str) -> bool:
        """Return False."""
        return False
