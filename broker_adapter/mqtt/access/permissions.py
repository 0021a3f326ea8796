"""The door to access control: who a client is and what it may do. Users and rules live behind it, in `access`."""

from __future__ import annotations

from typing import Protocol

import attrs


@attrs.frozen(slots=True)
class Principal:
    """Who a client turned out to be.

    Attributes:
        username: Empty for an anonymous client.
    """

    client_id: str
    username: str = ""


class Access(Protocol):
    """Decides on connecting, publishing and subscribing.

    Attributes:
        changes: How often what it answers may have changed: an answer holds as long as this stays.
    """

    @property
    def changes(self) -> int: ...

    async def authenticate(
        self, client_id: str, username: str | None, password: bytes | None, peer: str
    ) -> Principal | None:
        """Who the client is; None refuses it (bad user name or password).

        Args:
            client_id: As the client named itself, or as it was named.
            username: As the client gave it.
            password: As the client gave it.
            peer: Where the client is, ``HOST:PORT``: who guesses is slowed down.
        """

    def may_publish(self, principal: Principal, topic: str) -> bool:
        """Whether it may publish to a topic. A delayed message is asked for under the topic it is for."""

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Whether it may subscribe to a filter. Of a shared one or a replay it is the filter inside."""


class AllowAll:
    """Lets everybody do everything."""

    changes = 0

    async def authenticate(
        self, client_id: str, username: str | None, password: bytes | None, peer: str
    ) -> Principal | None:
        return Principal(client_id, username or "")

    def may_publish(self, principal: Principal, topic: str) -> bool:
        return True

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        return True
