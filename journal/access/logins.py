"""The interface of logins: what a client sends, who it is then, and a method that decides about it.

`login_chain` asks the methods of a program in their order. The journal server and the MQTT broker use it.
"""

from __future__ import annotations

import enum
from typing import Final, Protocol

import attrs

from journal.access.rules import NO_GRANTS, Grants

_SHOWN_CHARACTERS: Final = 100


class Secret(enum.Enum):
    """The kinds of credentials that a method may decide about."""

    PASSWORD = "password"  # noqa: S105 the name of a kind
    TOKEN = "token"  # noqa: S105 the name of a kind
    CERTIFICATE = "certificate"


@attrs.frozen(slots=True)
class Attempt:
    """What a client sent in order to log in.

    Attributes:
        peer: Address of the client, ``HOST:PORT``.
        user: The user name; None if it sent none.
        password: The password; None if it sent none.
        token: A bearer token; None if it sent none.
        client_id: Its client identifier, where the protocol has one.
        certificate_name: The name in its certificate, which TLS has verified; empty without one. Never taken from what
            the client sent.
    """

    peer: str
    user: str | None = None
    password: bytes | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    client_id: str = ""
    certificate_name: str = ""

    @property
    def shown_client(self) -> str:
        """The beginning of the client identifier, for the log."""
        return self.client_id[:_SHOWN_CHARACTERS]

    @property
    def host(self) -> str:
        """The address without the port."""
        return self.peer.rpartition(":")[0]


@attrs.frozen(slots=True, eq=False)
class Identity:
    """A client that has logged in.

    Attributes:
        name: The user name.
        method: The kind of the method that decided.
        proof: What the method decided by, for `LoginMethod.still_accepts`.
        expires_at_s: Seconds since 1970 at which the login ends; None for never.
        grants: Roles and rules that the login gave.
    """

    name: str
    method: str
    proof: object = attrs.field(default=None, repr=False)
    expires_at_s: float | None = None
    grants: Grants = NO_GRANTS


@attrs.frozen(slots=True)
class LoginStep:
    """A login method in the order of the settings.

    Attributes:
        kind: The kind of the method.
        denied: Names that are refused although the method accepts them.
    """

    kind: str
    denied: frozenset[str] = frozenset()


class LoginMethod(Protocol):
    """One way to log in.

    Attributes:
        kind: Its name in the settings.
        takes: The kinds of credentials that it may decide about.
    """

    @property
    def kind(self) -> str: ...

    @property
    def takes(self) -> frozenset[Secret]: ...

    async def check(self, attempt: Attempt, *, is_last: bool) -> Identity | None:
        """Decide about an attempt; None leaves it to the next method. It need not wait for anything then.

        Args:
            attempt: What the client sent.
            is_last: Whether no later method decides about these credentials: then unknown ones are refused.

        Raises:
            AuthenticationError: It is refused. The message goes to the client.
        """

    def still_accepts(self, identity: Identity) -> bool:
        """Whether it would still accept a client that it has accepted."""

    def may_know(self, name: str) -> bool:
        """Whether a user of this name may exist."""
