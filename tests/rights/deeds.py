"""What is asked for: a request of one principal over one way in, and what it needs, as the model says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from tests.rights.model import ACTIONS, Rights, Rule

ADMIN: Final = "admin"
ROLES: Final = {"staff": ("anna", "bob"), "guests": ("häns", "$SYS")}
USERS: Final = ("anna", "bob", "häns", "$SYS", "a/b", "+", "")
"""The last is a peer without credentials."""

BASE: Final = Rule(
    True, frozenset(ACTIONS), ADMIN, ("#", "$queue/#", "$mqtt/#", "$SYS/#", "$state/#", "$metrics"), ("#",), ("#",)
)
"""The first rule always: the tests prepare and look as an administrator."""

LONG: Final = "n" * 1000
SHARDS: Final = (
    "plant",
    "plant/line1",
    "plant/line1/anna",
    "plant/",
    "/",
    "anna/plant",
    "bob/plant",
    "häns/line1",
    "plant/../bob",
    "a/b",
    "%u/x",
    "filter billing",
    f"long/{LONG}",
    "$queue/bridge1",
    "$mqtt/own",
    "$SYS/x",
    "$state/plant/a",
    "$metrics",
)
INVALID: Final = ("", "\x00", "plant/#/x", "a+b", "n" * 1100, "filter plant/#")
FILTERS: Final = (
    "#",
    "+",
    "+/#",
    "+/+",
    "+/plant",
    "plant/#",
    "plant/+",
    "plant/+/anna",
    "plant/line1/#",
    "anna/#",
    "bob/+",
    "häns/+/#",
    "/#",
    "$queue/#",
    "$SYS/+",
    "$state/#",
    "plant",
    "anna/plant",
    "$queue/bridge1",
)
RULE_FILTERS: Final = (
    *FILTERS,
    "%u/#",
    "plant/%u",
    "plant/line1/%u",
    "%u",
    "+/%u",
    "x%u/#",
    "$state/plant/#",
    "$state/%u/#",
    "$state/+/#",
    "$state/plant/a",
    "$metrics",
    "%u/+/#",
)
GROUPS: Final = ("billing", "plant/line1", "anna", "team/anna", "group/x", "+", "#", "häns")
RULE_GROUPS: Final = ("billing", "%u", "team/%u", "#", "plant/+", "+", "group/#")
CURSORS: Final = ("pos", "anna", "group/billing", "group/anna", "group/", "plant", "plant/line1", "#", "+")
RULE_CURSORS: Final = ("pos", "%u", "#", "group/#", "plant/#", "+")
KEYS: Final = (b"plant/a", b"plant", b"anna/k", b"bob/k", "häns/k".encode(), b"queue/bridge1", b"\xff/x", b"+/x", b"#")
PREFIXES: Final = (b"", b"plant/", b"plant", b"anna/", b"bob/k", b"+/", b"\xff/", b"q", "häns/".encode())


def random_rules(rng: random.Random) -> tuple[Rule, ...]:
    """Up to seven rules, of which most allow something; in a third of all cases everything but a few topics."""
    found = tuple(_random_rule(rng) for _ in range(rng.randint(1, 7)))
    if rng.random() < 0.67:
        return found
    denied = Rule(False, frozenset(ACTIONS), topics=tuple(rng.sample(SHARDS, 2)))
    return (denied, *found, Rule(True, frozenset(ACTIONS), topics=("#",)))


def _random_rule(rng: random.Random) -> Rule:
    topics, groups, cursors = (
        tuple(rng.sample(names, rng.randint(0, 2))) for names in (RULE_FILTERS, RULE_GROUPS, RULE_CURSORS)
    )
    some = rng.sample(ACTIONS, rng.randint(1, 3))
    return Rule(
        allow=rng.random() < 0.75,
        actions=frozenset(ACTIONS if rng.random() < 0.4 else (*some, "read")),
        who=rng.choice(("", "", "", *USERS[:-1], *ROLES)),
        topics=topics if topics or groups or cursors else ("#",),
        groups=groups,
        cursors=cursors,
    )


@attrs.frozen
class Deed:
    """A request. Each kind uses some of the names.

    Attributes:
        way: The way into the server.
        kind: What is asked for.
        who: The principal.
    """

    way: str
    kind: str
    who: str
    shard: str = "plant"
    topic_filter: str = "plant/#"
    group: str = "billing"
    cursor: str = "pos"
    key: bytes = b"plant/a"
    prefix: bytes = b"plant/"
    create: bool = False

    @property
    def is_valid(self) -> bool:
        """Whether no name of it is refused as a name."""
        return self.shard not in INVALID and self.topic_filter not in INVALID


Needs = Callable[[Rights, Deed, bool], bool]


def _sees_shard(rights: Rights, deed: Deed) -> bool:
    return rights.topic("read", deed.shard) or rights.topic("administer", deed.shard)


def _sees_filter(rights: Rights, topic_filter: str) -> bool:
    return rights.filter("read", topic_filter) or rights.filter("administer", topic_filter)


def _administers(rights: Rights, deed: Deed, exists: bool) -> bool:
    return rights.topic("administer", deed.shard)


def _opens(rights: Rights, deed: Deed, exists: bool) -> bool:
    may_create = rights.topic("append", deed.shard) or rights.topic("administer", deed.shard)
    may_open = rights.topic("append", deed.shard) or rights.topic("read", deed.shard)
    return may_open and (exists or may_create or not deed.create)


def _joins(rights: Rights, deed: Deed, exists: bool) -> bool:
    return rights.topic("subscribe", deed.shard) and (
        rights.group("read", deed.group) or rights.topic("administer", deed.shard)
    )


def _joins_filter(rights: Rights, deed: Deed, exists: bool) -> bool:
    return rights.except_denied("subscribe", deed.topic_filter) and (
        rights.group("read", deed.group) or rights.filter("administer", deed.topic_filter)
    )


def _moves_cursor(rights: Rights, deed: Deed, exists: bool) -> bool:
    return rights.topic("administer", deed.shard) or (
        rights.topic("read", deed.shard) and rights.cursor("read", deed.cursor)
    )


def state_name(key: bytes) -> str:
    """A key of the state store as rules name it."""
    return "$state/" + key.decode(errors="backslashreplace")


def _scans(rights: Rights, deed: Deed, exists: bool) -> bool:
    return rights.filter("read", state_filter(deed.prefix))


def state_filter(prefix: bytes) -> str:
    """All keys that a scan by a prefix may meet, as rules name them."""
    return state_name(prefix[: prefix.rindex(b"/") + 1] if b"/" in prefix else b"") + "#"


def _commits(rights: Rights, deed: Deed, exists: bool) -> bool:
    return (
        rights.topic("append", deed.shard)
        and rights.topic("append", state_name(deed.key))
        and _sees_shard(rights, deed)
    )


def _node(rights: Rights, deed: Deed, exists: bool) -> bool:
    return rights.filter("administer", "#")


NEEDS: Final[dict[str, Needs]] = {
    "list": lambda rights, deed, exists: _sees_filter(rights, deed.topic_filter),
    "describe": lambda rights, deed, exists: _sees_shard(rights, deed),
    "open": _opens,
    "create": _administers,
    "delete": _administers,
    "set mode": _administers,
    "configure": _administers,
    "roll": _administers,
    "trim": _administers,
    "append": lambda rights, deed, exists: rights.topic("append", deed.shard),
    "read": lambda rights, deed, exists: rights.topic("read", deed.shard),
    "find offset": lambda rights, deed, exists: rights.topic("read", deed.shard),
    "read by key": lambda rights, deed, exists: rights.topic("read", deed.shard),
    "subscribe": lambda rights, deed, exists: rights.topic("subscribe", deed.shard),
    "subscribe filter": lambda rights, deed, exists: rights.except_denied("subscribe", deed.topic_filter),
    "join": _joins,
    "join filter": _joins_filter,
    "cursors": lambda rights, deed, exists: _sees_shard(rights, deed),
    "cursor": lambda rights, deed, exists: _sees_shard(rights, deed),
    "cursors of filter": lambda rights, deed, exists: _sees_filter(rights, deed.topic_filter),
    "set cursor": _moves_cursor,
    "delete cursor": _moves_cursor,
    "state": lambda rights, deed, exists: rights.topic("read", state_name(deed.key)),
    "states": _scans,
    "put state": lambda rights, deed, exists: rights.topic("append", state_name(deed.key)),
    "delete state": lambda rights, deed, exists: rights.topic("append", state_name(deed.key)),
    "commit": _commits,
    "open producer": lambda rights, deed, exists: rights.somewhere("append"),
    "queues": lambda rights, deed, exists: _sees_filter(rights, "$queue/#"),
    "metrics": lambda rights, deed, exists: (
        rights.topic("read", "$metrics") or rights.filter("read", "#") or rights.filter("administer", "#")
    ),
    "node": _node,
    "connections": _node,
    "subscriptions": _node,
    "snapshot": _node,
    "end another": _node,
    "open to all": lambda rights, deed, exists: True,
}
"""What each kind needs, given the rights, the request, and whether its shard exists."""

CHANGING: Final = {
    "open",
    "create",
    "delete",
    "set mode",
    "configure",
    "roll",
    "trim",
    "append",
    "set cursor",
    "delete cursor",
    "put state",
    "delete state",
    "commit",
    "open producer",
    "join",
    "join filter",
}
"""Kinds that change something where they are carried out; no other kind ever changes anything."""

SHOWS_ALL: Final = {"node", "connections", "subscriptions", "metrics", "snapshot"}
"""Kinds that show whatever there is to those who may ask."""

USES_FILTER: Final = {"list", "subscribe filter", "join filter", "cursors of filter"}
USES_KEY: Final = {"state", "put state", "delete state"}


def named_in_audit(deed: Deed) -> set[str]:
    """The targets that an audit line about a refusal of this request may have."""
    if deed.kind in USES_FILTER:
        return {deed.topic_filter}
    if deed.kind in USES_KEY:
        return {state_name(deed.key)}
    if deed.kind == "states":
        return {state_filter(deed.prefix)}
    if deed.kind == "commit":
        return {deed.shard, state_name(deed.key)}
    if deed.kind == "queues":
        return {"$queue/#"}
    if deed.kind in SHOWS_ALL or deed.kind in ("end another", "open producer"):
        return {""}
    return {deed.shard}


def random_deed(rng: random.Random, pairs: Sequence[tuple[str, str]], shards: Sequence[str]) -> Deed:
    """A request over one of these ways and of that kind, mostly about one of these shards."""
    way, kind = rng.choice(pairs)
    return Deed(
        way,
        kind,
        who=rng.choice(USERS),
        shard=rng.choice(shards if rng.random() < 0.7 else (*SHARDS, *INVALID)),
        topic_filter=rng.choice(FILTERS if rng.random() < 0.9 else INVALID),
        group=rng.choice(GROUPS),
        cursor=rng.choice(CURSORS),
        key=rng.choice(KEYS),
        prefix=rng.choice(PREFIXES),
        create=rng.random() < 0.5,
    )
