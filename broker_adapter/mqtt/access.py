"""What clients may do: rules by user, client and topic, and the door of `permissions` that the broker asks at.

Rules are tried in order and the first that decides wins:

- A publish is decided by the first rule whose filter matches the topic.
- A subscription is allowed by a rule whose filter covers all that is asked for, and denied by a rule whose filter has
  anything in common with it; a rule to allow a part of it decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from broker_adapter.mqtt.permissions import Principal
from journal.access.authentication import Authentication
from shards.filter_overlap import covers, overlap
from shards.topic_filters import matches

_PLACEHOLDER: Final = re.compile("%[uc]")
_UNFIT: Final = re.compile("[+#/]")
_REMEMBERED_TOPICS: Final = 256
_REMEMBERED_CLIENTS: Final = 20_000


@attrs.frozen(slots=True)
class AccessRule:
    """One rule.

    Attributes:
        allow: Whether it allows or denies.
        topic_filters: What it is about. ``%u`` stands for the user name and ``%c`` for the client identifier.
        publish: Whether it is about publishing.
        subscribe: Whether it is about subscribing.
        user: The user that it is about; empty for everybody.
        client_id: The client that it is about; empty for all.
    """

    allow: bool
    topic_filters: tuple[str, ...]
    publish: bool = True
    subscribe: bool = True
    user: str = ""
    client_id: str = ""

    @property
    def is_same_for_all(self) -> bool:
        """Whether it does not depend on who the client is."""
        return not (self.user or self.client_id or any(map(_PLACEHOLDER.search, self.topic_filters)))

    def filters_for(self, principal: Principal) -> tuple[str, ...]:
        """Its filters for a client; none if it is not about that client."""
        if (self.user and self.user != principal.username) or (
            self.client_id and self.client_id != principal.client_id
        ):
            return ()
        filled = (self._fill(topic_filter, principal) for topic_filter in self.topic_filters)
        return tuple(topic_filter for topic_filter in filled if topic_filter is not None)

    def _fill(self, topic_filter: str, principal: Principal) -> str | None:
        """Put the client's names in.

        A name must not bring levels or wildcards of its own in: a rule to allow says nothing to a client with such a
        name or none, a rule to deny takes the whole level for such a client, as if there were a ``+``.
        """
        names = {"%u": principal.username, "%c": principal.client_id}
        levels = []
        for level in topic_filter.split("/"):
            used = _PLACEHOLDER.findall(level)
            if any(not names[each] or _UNFIT.search(names[each]) for each in used):
                if self.allow:
                    return None
                levels.append("+")
            else:
                # In one go: what a name holds is not looked through for placeholders.
                levels.append(_PLACEHOLDER.sub(lambda found: names[found[0]], level))
        filled = "/".join(levels)
        # A client that is called "$SYS" must not get at what wildcards in first place do not match.
        return None if filled.startswith("$") and not topic_filter.startswith("$") and self.allow else filled


class Permissions:
    """What one client may do."""

    def __init__(self, rules: Iterable[AccessRule], principal: Principal, *, default: bool) -> None:
        self._default = default
        self._publish: list[tuple[bool, tuple[str, ...]]] = []
        self._subscribe: list[tuple[bool, tuple[str, ...]]] = []
        self._decided: dict[str, bool] = {}
        for rule in rules:
            filters = rule.filters_for(principal)
            if filters and rule.publish:
                self._publish.append((rule.allow, filters))
            if filters and rule.subscribe:
                self._subscribe.append((rule.allow, filters))

    def may_publish(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        if not self._publish:
            return self._default
        decided = self._decided.get(topic)
        if decided is None:
            decided = next(
                (allow for allow, filters in self._publish if any(matches(each, topic) for each in filters)),
                self._default,
            )
            if len(self._decided) >= _REMEMBERED_TOPICS:
                self._decided.clear()
            self._decided[topic] = decided
        return decided

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether it may subscribe to a filter."""
        for allow, filters in self._subscribe:
            applies = covers if allow else overlap
            if any(applies(each, topic_filter) for each in filters):
                return allow
        return self._default


class AccessRules:
    """An ordered set of rules.

    Args:
        rules: The first that decides wins.
        default: Whether what no rule decides is allowed.
    """

    def __init__(self, rules: Sequence[AccessRule] = (), *, default: bool = True) -> None:
        self._rules = tuple(rules)
        self._default = default
        self._same_for_all = (
            Permissions(self._rules, Principal(""), default=default)
            if all(rule.is_same_for_all for rule in self._rules)
            else None
        )
        self._by_client: dict[Principal, Permissions] = {}

    def permissions_of(self, principal: Principal) -> Permissions:
        """What a client may do."""
        if self._same_for_all is not None:
            return self._same_for_all
        found = self._by_client.get(principal)
        if found is None:
            found = Permissions(self._rules, principal, default=self._default)
            if len(self._by_client) >= _REMEMBERED_CLIENTS:
                del self._by_client[next(iter(self._by_client))]
            self._by_client[principal] = found
        return found


class AccessControl:
    """Decides on connecting, publishing and subscribing, as `permissions.Access` asks for it.

    Args:
        authentication: Checks passwords.
        rules: What clients may do.
        anonymous: Whether clients without a user name get in. Without any users, a name that a client gives cannot be
            checked, so such a client is anonymous, too.

    Attributes:
        rules: They may be exchanged; the next publish or subscription is decided by the new ones.
    """

    def __init__(self, authentication: Authentication, rules: AccessRules, *, anonymous: bool) -> None:
        self.authentication = authentication
        self.rules = rules
        self._anonymous = anonymous

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
        return self.rules.permissions_of(principal).may_publish(topic)

    def may_subscribe(self, principal: Principal, topic_filter: str) -> bool:
        """Whether it may subscribe to a filter."""
        return self.rules.permissions_of(principal).may_subscribe(topic_filter)
