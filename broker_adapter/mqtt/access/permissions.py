"""Interface of access control: authentication and permissions. `access.users` implements it with users and rules."""

from __future__ import annotations

from typing import Protocol

import attrs

from broker_adapter.mqtt_codec.text import shown
from journal.access.logins import Identity
from journal.access.rules import NO_GRANTS, Grants


@attrs.frozen(slots=True)
class Principal:
    """An authenticated (or anonymous) client.

    Attributes:
        username: Empty for an anonymous client.
        identity: Its login; None for an anonymous client.
        grants: Roles and rules that its login gave.
    """

    client_id: str
    username: str = ""
    identity: Identity | None = attrs.field(default=None, eq=False, repr=False)
    grants: Grants = attrs.field(default=NO_GRANTS, repr=False)


def user_shown(name: str) -> str:
    """A user for a message; an empty name is an anonymous client."""
    return f"user {shown(name)}" if name else "an anonymous client"


def host_of(peer: str) -> str:
    """The address in ``HOST:PORT``, without the brackets of IPv6."""
    return peer.rpartition(":")[0].strip("[]")


class Access(Protocol):
    """Decides on connecting, publishing and subscribing.

    Attributes:
        changes: Counter that rises whenever the rules change; a decision may be cached while it stays the same.
    """

    @property
    def changes(self) -> int: ...

    async def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        peer: str,
        certificate_name: str = "",
    ) -> Principal | None:
        """Authenticate a client; None refuses it (bad user name or password).

        Args:
            client_id: As sent in CONNECT, or as assigned by the broker.
            username: As sent in CONNECT.
            password: As sent in CONNECT.
            peer: Address of the client, ``HOST:PORT``: repeated wrong passwords from it are slowed down.
            certificate_name: The name in its certificate, which TLS has verified; empty without one.
        """

    def may_use_client_id(self, principal: Principal) -> bool:
        """Whether the client may connect with the identifier that it chose."""

    def may_open_session(self, principal: Principal, user: str) -> bool:
        """Whether the client may open a session that a client of this user began; an empty name: an anonymous one."""

    def is_admitted(self, principal: Principal) -> bool:
        """Whether a client that was authenticated would still be: its user exists, with the same password."""

    def may_publish_will(self, principal: Principal, topic: str) -> bool:
        """Whether a will that the client left may be published now: its user exists and may publish to the topic."""

    def may_publish(self, principal: Principal, topic: str) -> bool:
        """Whether the client may publish to a topic. For a delayed message it is the topic inside ``$delayed/...``."""

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Whether the client may have all topics of a filter.

        For a shared subscription or a replay, it is the filter inside it.
        """

    def may_subscribe_except(self, principal: Principal, topic_filter: str) -> bool:
        """Whether the client may subscribe to a filter if it does not get the topics of it that are denied to it."""
