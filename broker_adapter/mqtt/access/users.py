"""Behind the door of `permissions`: users of a password file, and rules about publishing and subscribing."""

from __future__ import annotations

from collections.abc import Collection

from broker_adapter.mqtt.access.permissions import Principal
from journal.access.authentication import Authentication
from journal.access.authorization import Action
from journal.access.rules import AccessRules


class AccessControl:
    """Decides on connecting, publishing and subscribing, as `permissions.Access` asks for it.

    Args:
        authentication: Checks passwords.
        rules: What clients may do.
        anonymous: Whether clients without a user name get in. Without any users, a name that a client gives cannot be
            checked, so such a client is anonymous, too.
        administrators: Names of users who may change what all brokers share.

    Attributes:
        administrators: They may be exchanged.
        rules: They may be exchanged; the next publish or subscription is decided by the new ones.
        changes: How often they were.
    """

    def __init__(
        self,
        authentication: Authentication,
        rules: AccessRules,
        *,
        anonymous: bool,
        administrators: Collection[str] = (),
    ) -> None:
        self.authentication = authentication
        self.administrators = administrators
        self.changes = 0
        self._rules = rules
        self._anonymous = anonymous

    @property
    def rules(self) -> AccessRules:
        """See the attribute."""
        return self._rules

    @rules.setter
    def rules(self, rules: AccessRules) -> None:
        self._rules = rules
        self.changes += 1

    async def authenticate(
        self, client_id: str, username: str | None, password: bytes | None, peer: str
    ) -> Principal | None:
        """Who the client is; None refuses it."""
        if self._anonymous and (not username or self.authentication.users is None):
            return Principal(client_id)
        if not username or password is None:
            return None
        host = peer.rpartition(":")[0]
        return Principal(client_id, username) if await self.authentication.check(username, password, host) else None

    def may_publish(self, principal: Principal, topic: str) -> bool:
        """Whether it may publish to a topic."""
        return self._rules.permissions_of(principal).may(Action.APPEND, topic)

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Whether it may subscribe to a filter."""
        return self._rules.permissions_of(principal).may(Action.SUBSCRIBE, topic_filter)

    def may_administer(self, principal: Principal) -> bool:
        """Whether it may see and change the rules that all brokers share. Who has given no password may not."""
        return bool(principal.username) and principal.username in self.administrators
