"""Access rules by user, client and names of topics, groups and cursors. Authentication is not done here.

Rules are tried in order and the first that decides wins:

- A request for one topic is decided by the first rule whose filter matches it.
- A request for a filter is allowed by a rule whose filter covers all of it, and denied by a rule whose filter overlaps
  with it; an allowing rule that covers only a part decides nothing.
- A request for a group or cursor is decided by the first rule that names it; its name is never taken for a filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import attrs

from journal.access.authorization import Action, Resource
from shards.topics.topic_filters import covers, is_filter, matches, overlap

_PLACEHOLDER: Final = re.compile("%[uc]")
_UNFIT: Final = re.compile("[+#/]")
_REMEMBERED_TOPICS: Final = 256
_REMEMBERED_SUBJECTS: Final = 20_000


@attrs.frozen(slots=True, cache_hash=True)
class Grants:
    """What a login gave to a subject, in addition to its name.

    Attributes:
        roles: Rules for one of these roles apply to it.
        rules: Rules for it alone; they decide what no configured rule decides.
    """

    roles: frozenset[str] = frozenset()
    rules: tuple[AccessRule, ...] = ()


NO_GRANTS: Final = Grants()


class Subject(Protocol):
    """The subject that rules are evaluated for; it is hashable.

    Attributes:
        username: The user name; empty for a subject without one.
        client_id: The name of the session; empty where sessions have none.
        grants: What its login gave to it.
    """

    @property
    def username(self) -> str: ...

    @property
    def client_id(self) -> str: ...

    @property
    def grants(self) -> Grants: ...


@attrs.frozen(slots=True)
class User:
    """A subject without a session."""

    username: str
    client_id: str = ""
    grants: Grants = NO_GRANTS


@attrs.frozen(slots=True, cache_hash=True)
class AccessRule:
    """One rule.

    Attributes:
        allow: Whether it allows or denies.
        topic_filters: Its topics. ``%u`` is replaced by the user name and ``%c`` by the client identifier.
        actions: The actions that it allows or denies.
        user: The user that it applies to; empty for all.
        client_id: The client that it applies to; empty for all.
        groups: Filters of the names of groups, with the same placeholders.
        cursors: Filters of the names of cursors, likewise.
        role: The role that it is for; empty for all subjects.
        members: The users who have this role, beside the subjects to whom their login gave it.
    """

    allow: bool
    topic_filters: tuple[str, ...]
    actions: frozenset[Action] = frozenset(Action)
    user: str = ""
    client_id: str = ""
    groups: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()
    role: str = ""
    members: frozenset[str] = frozenset()

    @property
    def is_same_for_all(self) -> bool:
        """Whether it does not depend on the subject."""
        names = (*self.topic_filters, *self.groups, *self.cursors)
        return not (self.user or self.client_id or self.role or any(map(_PLACEHOLDER.search, names)))

    def filters_for(self, subject: Subject) -> tuple[str, ...]:
        """Its topic filters for a subject; none if it does not apply to it."""
        return self._filled(self.topic_filters, subject)

    def names_for(self, subject: Subject, resource: Resource) -> tuple[str, ...]:
        """Its filters of the names of groups or cursors for a subject; none if it does not apply to it."""
        return self._filled(self.groups if resource is Resource.GROUP else self.cursors, subject)

    def _filled(self, filters: tuple[str, ...], subject: Subject) -> tuple[str, ...]:
        if (self.user and self.user != subject.username) or (self.client_id and self.client_id != subject.client_id):
            return ()
        if self.role and self.role not in subject.grants.roles and subject.username not in self.members:
            return ()
        filled = (self._fill(each, subject) for each in filters)
        return tuple(each for each in filled if each is not None)

    def _fill(self, topic_filter: str, subject: Subject) -> str | None:
        """Replace the placeholders by names.

        A name must not add levels or wildcards: an allowing rule does not apply to a subject with such a name or
        without one, and in a denying rule the whole level is replaced by ``+``.
        """
        names = {"%u": subject.username, "%c": subject.client_id}
        levels = []
        for level in topic_filter.split("/"):
            used = _PLACEHOLDER.findall(level)
            if any(not names[each] or _UNFIT.search(names[each]) for each in used):
                if self.allow:
                    return None
                levels.append("+")
            else:
                # In one pass: placeholders inside a name are not replaced.
                levels.append(_PLACEHOLDER.sub(lambda found: names[found[0]], level))
        filled = "/".join(levels)
        # A user called "$SYS" must not get access to topics that a wildcard in the first level does not match.
        return None if filled.startswith("$") and not topic_filter.startswith("$") and self.allow else filled


class Permissions:
    """The rights of a subject."""

    def __init__(self, rules: Iterable[AccessRule], subject: Subject, *, default: bool) -> None:
        self._default = default
        self._rules: dict[Action, list[tuple[bool, tuple[str, ...]]]] = {action: [] for action in Action}
        self._names: dict[tuple[Action, Resource], list[tuple[bool, tuple[str, ...]]]] = {}
        self._decided: dict[tuple[Action, str], bool] = {}
        for rule in rules:
            if filters := rule.filters_for(subject):
                for action in rule.actions:
                    self._rules[action].append((rule.allow, filters))
            for resource in (Resource.GROUP, Resource.CURSOR):
                if names := rule.names_for(subject, resource):
                    for action in rule.actions:
                        self._names.setdefault((action, resource), []).append((rule.allow, names))

    def may(self, action: Action, target: str) -> bool:
        """Whether it may do an action with a topic, or with all topics that match a filter."""
        rules = self._rules[action]
        if rules and is_filter(target):
            return self._decide(rules, target, of_one=False)
        return self.may_topic(action, target)

    def may_topic(self, action: Action, topic: str) -> bool:
        """Whether it may do an action with a topic, or another name among the topics, whatever characters it has."""
        rules = self._rules[action]
        if not rules:
            return self._default
        decided = self._decided.get((action, topic))
        if decided is None:
            decided = self._decide(rules, topic, of_one=True)
            if len(self._decided) >= _REMEMBERED_TOPICS:
                self._decided.clear()
            self._decided[action, topic] = decided
        return decided

    def may_named(self, action: Action, resource: Resource, name: str) -> bool:
        """Whether it may do an action with a group or cursor of this name, whatever characters it has."""
        return self._decide(self._names.get((action, resource), []), name, of_one=True)

    def may_somewhere(self, action: Action) -> bool:
        """Whether there may be any topic with which it may do an action, according to the rules alone."""
        for allow, filters in self._rules[action]:
            if allow or "#" in filters:
                return allow
        return self._default

    def may_except(self, action: Action, target: str) -> bool:
        """Whether it may do an action with the topics that match a filter, except for some that rules deny.

        Rules whose filter covers only a part of the topics decide nothing here: the caller has to ask `may` for each.
        """
        for allow, filters in self._rules[action]:
            if any(covers(each, target) for each in filters):
                return allow
        return self._default

    def denies(self, action: Action, topic: str) -> bool:
        """Whether the first rule that decides about a topic denies the action; False if no rule decides."""
        for allow, filters in self._rules[action]:
            if any(matches(each, topic) for each in filters):
                return not allow
        return False

    def _decide(self, rules: list[tuple[bool, tuple[str, ...]]], target: str, *, of_one: bool) -> bool:
        for allow, filters in rules:
            applies = matches if of_one else covers if allow else overlap
            if any(applies(each, target) for each in filters):
                return allow
        return self._default


class AccessRules:
    """An ordered set of rules.

    Args:
        rules: The first that decides wins.
        default: Whether actions that no rule decides are allowed.
    """

    def __init__(self, rules: Sequence[AccessRule] = (), *, default: bool = True) -> None:
        self._rules = tuple(rules)
        self._default = default
        self._same_for_all = (
            Permissions(self._rules, User(""), default=default)
            if all(rule.is_same_for_all for rule in self._rules)
            else None
        )
        self._by_subject: dict[Subject, Permissions] = {}

    @property
    def allow_by_default(self) -> bool:
        """Whether actions that no rule decides are allowed."""
        return self._default

    @property
    def allow_everything(self) -> bool:
        """Whether no action is denied to any subject."""
        return self._default and not self._rules

    def deciding(self, subject: Subject, action: Action, topic: str) -> int | None:
        """The place, from 0, of the rule that decides about an action with one topic; None if none does."""
        for place, rule in enumerate(self._rules):
            if action in rule.actions and any(matches(each, topic) for each in rule.filters_for(subject)):
                return place
        return None

    def permissions_of(self, subject: Subject) -> Permissions:
        """The rights of a subject."""
        own = subject.grants.rules
        if self._same_for_all is not None and not own:
            return self._same_for_all
        found = self._by_subject.get(subject)
        if found is None:
            found = Permissions((*self._rules, *own), subject, default=self._default)
            if len(self._by_subject) >= _REMEMBERED_SUBJECTS:
                del self._by_subject[next(iter(self._by_subject))]
            self._by_subject[subject] = found
        return found
