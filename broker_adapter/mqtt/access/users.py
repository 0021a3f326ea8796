"""Implementation of `permissions.Access`: logins, client identifiers, and rules about topics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

import structlog

from broker_adapter.errors import AuthenticationError
from broker_adapter.mqtt.access.permissions import Principal
from journal.access.authorization import Action
from journal.access.login_methods import Logins
from journal.access.logins import Attempt
from journal.access.rules import AccessRules

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class AccessControl:
    """Decides on connecting, publishing and subscribing; see `permissions.Access`.

    Args:
        logins: See the attribute.
        rules: Permissions of clients.
        anonymous: Whether clients without a user name are accepted. Without any login method, a user name cannot be
            checked, so a client that sends one counts as anonymous, too.
        administrators: Names of users who may change the configuration that all brokers share.
        client_ids: Client identifiers that users may connect with.

    Attributes:
        logins: Authenticates clients; its credentials may be replaced at any time.
        administrators: May be replaced at any time.
        client_ids: May be replaced at any time.
        rules: May be replaced at any time; the next publish or subscription is decided by the new ones.
        changes: Counter of replacements of the rules.
    """

    def __init__(
        self,
        logins: Logins,
        rules: AccessRules,
        *,
        anonymous: bool,
        administrators: Collection[str] = (),
        client_ids: ClientIds | None = None,
    ) -> None:
        self.logins = logins
        self.administrators = administrators
        self.client_ids = client_ids or ClientIds()
        self.changes = 0
        self._rules = rules
        self._anonymous = anonymous

    @property
    def rules(self) -> AccessRules:
        """The permissions in force; see the class."""
        return self._rules

    @rules.setter
    def rules(self, rules: AccessRules) -> None:
        self._rules = rules
        self.changes += 1

    async def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        peer: str,
        certificate_name: str = "",
    ) -> Principal | None:
        """Authenticate a client; None refuses it."""
        if self._anonymous and not self.logins.credentials.has_credentials:
            return Principal(client_id)
        attempt = Attempt(peer, username, password, client_id=client_id, certificate_name=certificate_name)
        try:
            identity = await self.logins.authenticate(attempt)
        except AuthenticationError as error:
            log.info("login refused", client=attempt.shown_client, peer=peer, reason=str(error))
            return None
        if identity is not None:
            return Principal(client_id, identity.name, identity, identity.grants)
        return Principal(client_id) if self._anonymous and not username else None

    def may_use_client_id(self, principal: Principal) -> bool:
        """Whether the client may connect with the identifier that it chose."""
        return self.client_ids.allow(principal)

    def may_open_session(self, principal: Principal, user: str) -> bool:
        """Whether the client may open a session that a client of this user began: only its own.

        A session of an anonymous client goes to the user to whom the identifier is bound by name, so that clients keep
        their sessions when they get users.
        """
        return user == principal.username or (not user and self.client_ids.bind(principal))

    def is_admitted(self, principal: Principal) -> bool:
        """Whether the client would still be accepted: its user exists, with the same password."""
        return principal.identity is None or self.logins.is_still_known(principal.identity)

    def may_publish_will(self, principal: Principal, topic: str) -> bool:
        """Whether a will that the client left may be published: its user exists and may publish to the topic."""
        name = principal.username
        if not name or not self.logins.credentials.has_credentials:
            return self.may_publish(principal, topic)
        if self.logins.may_give_rights(name):
            # What its login gave is not stored. The will was checked by that at CONNECT.
            return not self._rules.permissions_of(principal).denies(Action.APPEND, topic)
        return self.logins.may_know(name) and self.may_publish(principal, topic)

    def may_publish(self, principal: Principal, topic: str) -> bool:
        """Whether the client may publish to a topic."""
        return self._rules.permissions_of(principal).may(Action.APPEND, topic)

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Whether the client may have all topics of a filter."""
        return self._rules.permissions_of(principal).may(Action.SUBSCRIBE, topic_filter)

    def may_subscribe_except(self, principal: Principal, topic_filter: str) -> bool:
        """Whether the client may subscribe to a filter if it does not get the topics of it that are denied to it."""
        return self._rules.permissions_of(principal).may_except(Action.SUBSCRIBE, topic_filter)

    def may_administer(self, principal: Principal) -> bool:
        """Whether the client may see and change the rules that all brokers share. An anonymous client may not."""
        return bool(principal.username) and principal.username in self.administrators


_USER: Final = "%u"
_TOKEN: Final = re.compile(r"(%u|\*)")


class ClientIds:
    """Patterns of client identifiers. ``%u`` stands for the user name, ``*`` for any characters, also none.

    An anonymous client has no name, so a pattern with ``%u`` does not allow it anything.

    Args:
        patterns: Without any, every client may use every identifier.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = tuple(patterns)

    def allow(self, principal: Principal) -> bool:
        """Whether a client may connect with its identifier."""
        return not self._patterns or any(_matches(pattern, principal) for pattern in self._patterns)

    def bind(self, principal: Principal) -> bool:
        """Whether a pattern gives the identifier to the client's user by name."""
        return any(_USER in pattern and _matches(pattern, principal) for pattern in self._patterns)


def _matches(pattern: str, principal: Principal) -> bool:
    if _USER in pattern and not principal.username:
        return False
    replaced = {_USER: re.escape(principal.username), "*": ".*"}
    expression = "".join(replaced.get(part) or re.escape(part) for part in _TOKEN.split(pattern))
    return re.fullmatch(expression, principal.client_id, re.DOTALL) is not None
