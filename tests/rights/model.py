"""Who may do what, written down a second time: simple, slow, and without any code of the product.

A rule is for topics, groups and cursors. The first rule that decides wins, and without one the answer is no. What a
filter stands for is found by trying names, so nothing here reasons about two filters as the product does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import attrs

ACTIONS: Final = ("append", "read", "subscribe", "administer")


@attrs.frozen
class Rule:
    """One rule; ``who`` is a principal, a role, or empty for all."""

    allow: bool
    actions: frozenset[str]
    who: str = ""
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()


@attrs.frozen
class Model:
    """The rights of all principals.

    Attributes:
        rules: In their order.
        roles: The principals of each role.
    """

    rules: tuple[Rule, ...]
    roles: Mapping[str, tuple[str, ...]]

    def of(self, who: str) -> Rights:
        """The rights of one principal; empty for one without a name."""
        found = []
        for rule in self.rules:
            if rule.who in ("", who) or who in self.roles.get(rule.who, ()):
                filled = (_filled(each, who, rule.allow) for each in (rule.topics, rule.groups, rule.cursors))
                found.append((rule, *filled))
        return Rights(tuple(found))


@attrs.frozen
class Rights:
    """What one principal may do."""

    rules: tuple[tuple[Rule, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]

    def topic(self, action: str, name: str) -> bool:
        """Whether it may do an action with one topic, which is never taken for a filter."""
        for rule, topics, _, _ in self.rules:
            if action in rule.actions and any(fits(each, name) for each in topics):
                return rule.allow
        return False

    def filter(self, action: str, wanted: str) -> bool:
        """Whether it may do an action with all topics of a filter."""
        for rule, topics, _, _ in self.rules:
            if action not in rule.actions:
                continue
            if rule.allow and any(is_within(wanted, each) for each in topics):
                return True
            if not rule.allow and any(overlaps(wanted, each) for each in topics):
                return False
        return False

    def except_denied(self, action: str, wanted: str) -> bool:
        """Whether a rule allows all topics of a filter, before one that denies all of them."""
        for rule, topics, _, _ in self.rules:
            if action in rule.actions and any(is_within(wanted, each) for each in topics):
                return rule.allow
        return False

    def group(self, action: str, name: str) -> bool:
        """Whether it may do an action with a group."""
        for rule, _, groups, _ in self.rules:
            if action in rule.actions and any(fits(each, name) for each in groups):
                return rule.allow
        return False

    def cursor(self, action: str, name: str) -> bool:
        """Whether it may do an action with a cursor; that of a group is the group's."""
        if name.startswith("group/"):
            return self.group(action, name[len("group/") :])
        for rule, _, _, cursors in self.rules:
            if action in rule.actions and any(fits(each, name) for each in cursors):
                return rule.allow
        return False

    def somewhere(self, action: str) -> bool:
        """Whether some rule may allow an action: one that allows stands before any that denies it everywhere."""
        for rule, topics, _, _ in self.rules:
            if action in rule.actions and topics and (rule.allow or "#" in topics):
                return rule.allow
        return False

    def any(self, name: str) -> bool:
        """Whether it may do anything with a topic, and so may know of it."""
        return any(self.topic(action, name) for action in ACTIONS)


def _filled(filters: tuple[str, ...], who: str, allow: bool) -> tuple[str, ...]:
    """The filters with the name of a principal; a name that is more than one plain level gives it nothing."""
    found = []
    for each in filters:
        levels = each.split("/")
        if "%u" in each and (not who or re.search("[+#/]", who)):
            if allow:
                continue
            levels = ["+" if "%u" in level else level for level in levels]
        filled = "/".join(level.replace("%u", who) for level in levels)
        if not (allow and filled.startswith("$") and not each.startswith("$")):
            found.append(filled)
    return tuple(found)


@lru_cache(100_000)
def fits(pattern: str, name: str) -> bool:
    """Whether a filter matches a name."""
    if pattern == name:
        return True
    if name.startswith("$") and pattern[:1] in ("+", "#"):
        return False
    return _fits(pattern.split("/"), name.split("/"))


def _fits(pattern: list[str], levels: list[str]) -> bool:
    if pattern == ["#"]:
        return True
    if not pattern or not levels:
        return pattern == levels
    return pattern[0] in ("+", levels[0]) and _fits(pattern[1:], levels[1:])


@lru_cache(100_000)
def is_within(narrow: str, wide: str) -> bool:
    """Whether a filter matches all that another matches."""
    return all(fits(wide, name) for name in _names(narrow, wide) if fits(narrow, name))


@lru_cache(100_000)
def overlaps(left: str, right: str) -> bool:
    """Whether some name fits both."""
    return any(fits(left, name) and fits(right, name) for name in _names(left, right))


@lru_cache(10_000)
def _names(left: str, right: str) -> tuple[str, ...]:
    """Enough names to tell two filters apart: of their levels and of one that is in neither, one level deeper."""
    levels = dict.fromkeys((*left.split("/"), *right.split("/"), "~"))
    words = [level for level in levels if level not in ("+", "#")]
    depth = max(left.count("/"), right.count("/")) + 2
    first = [*words, "$~"]
    return tuple(
        "/".join((start, *more))
        for count in range(depth)
        for start in first
        for more in itertools.product(words, repeat=count)
    )
