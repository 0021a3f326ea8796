"""Roles and rules that a login gives, in the form of a claim or of the answer of a web service. Pure.

A rule is ``{"permission": "allow", "topics": ["a/#"], "actions": ["publish", "subscribe"]}``, with ``groups`` and
``cursors`` as in the settings of the server. ``publish`` is the same as ``append``.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from journal.access.authorization import Action
from journal.access.rules import AccessRule, Grants
from journal.settings.values import parse_filters

_MOST: Final = 100
_ACTIONS: Final = {
    **{action.value: frozenset({action}) for action in Action},
    "publish": frozenset({Action.APPEND}),
    "all": frozenset(Action),
}


class _Rule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    permission: Literal["allow", "deny"]
    topics: tuple[str, ...] = ()
    actions: tuple[str, ...] = ("all",)
    groups: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()


def grants_of(roles: object, rules: object) -> Grants:
    """Roles and rules of a login.

    Args:
        roles: A list of names, or one name; None for none.
        rules: A list of rules; None for none.

    Raises:
        ValueError: They have another form; the message says which part.
    """
    names = [] if roles is None else [roles] if isinstance(roles, str) else roles
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names) or len(names) > _MOST:
        raise ValueError(f"the roles are not a list of up to {_MOST} names")
    try:
        found = [] if rules is None else msgspec.convert(rules, list[_Rule])
    except msgspec.ValidationError as error:
        raise ValueError(f"the rules are not valid: {error}") from error
    if len(found) > _MOST:
        raise ValueError(f"there are more than {_MOST} rules")
    return Grants(frozenset(names), tuple(map(_rule_of, found)))


def _rule_of(rule: _Rule) -> AccessRule:
    if not (rule.topics or rule.groups or rule.cursors):
        raise ValueError("a rule names neither topics nor groups nor cursors")
    if max(len(rule.topics), len(rule.groups), len(rule.cursors)) > _MOST:
        raise ValueError(f"a rule has more than {_MOST} names")
    unknown = set(rule.actions) - set(_ACTIONS)
    if unknown or not rule.actions:
        raise ValueError(f"a rule has actions that are not among {', '.join(_ACTIONS)}")
    try:
        topics, groups, cursors = (
            parse_filters(list(names)) if names else () for names in (rule.topics, rule.groups, rule.cursors)
        )
    except (TypeError, ValueError) as error:
        raise ValueError("a rule has names that are not valid filters") from error
    actions = frozenset[Action]().union(*(_ACTIONS[each] for each in rule.actions))
    return AccessRule(rule.permission == "allow", topics, actions, groups=groups, cursors=cursors)
