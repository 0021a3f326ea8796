"""The server's settings of TLS, access and quotas. `journal.server.security` applies them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import attrs
from attrs import field

from journal.net.address import is_loopback_host, parse_address
from journal.settings.logins import LoginTable, LoginType, login_problems
from journal.settings.values import (
    TIB,
    File,
    Kind,
    Permission,
    Size,
    Text,
    bytes_within,
    parse_filters,
    parse_text,
    within,
)

_MANY = 1_000_000_000


def _parse_actions(value: object) -> tuple[RuleAction, ...]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("names no action")
    try:
        return tuple(RuleAction(parse_text(each)) for each in values)
    except ValueError as error:
        raise ValueError("names something that is not an action") from error


def _parse_names(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(map(parse_text, values)):
        raise ValueError("names no principal")
    return tuple(map(parse_text, values))


class RuleAction(enum.StrEnum):
    """An action of a rule."""

    APPEND = "append"
    READ = "read"
    SUBSCRIBE = "subscribe"
    ADMINISTER = "administer"
    ALL = "all"


Names = Annotated[
    tuple[str, ...],
    Kind(parse_filters, 'a list of names or filters of names, in which "%u" is replaced by the principal\'s name'),
]
Filters = Annotated[
    tuple[str, ...], Kind(parse_filters, 'a list of topic filters, in which "%u" is replaced by the principal\'s name')
]
Actions = Annotated[
    tuple[RuleAction, ...], Kind(_parse_actions, 'a list of "append", "read", "subscribe", "administer" and "all"')
]

Principals = Annotated[tuple[str, ...], Kind(_parse_names, "a list of names of principals")]


@attrs.frozen
class TlsSection:
    """Certificates of all listeners."""

    certificate_file: File = ""
    key_file: File = ""
    client_ca_file: File = ""


@attrs.frozen
class RoleTable:
    """A name for a set of rules, and the principals that have this role."""

    name: Text
    principals: Principals = ()


@attrs.frozen
class AccessRuleTable:
    """One rule about the rights of principals."""

    permission: Permission
    topics: Filters = ()
    actions: Actions = (RuleAction.ALL,)
    principal: Text = ""
    groups: Names = ()
    cursors: Names = ()
    role: Text = ""


@attrs.frozen
class AccessSection:
    """Authentication and rights."""

    users_file: File = ""
    tokens_file: File = ""
    anonymous: bool = False
    allow_insecure: bool = False
    audit_file: File = ""
    logins: tuple[LoginTable, ...] = ()
    roles: tuple[RoleTable, ...] = ()
    rules: tuple[AccessRuleTable, ...] = ()


@attrs.frozen
class QuotaTable:
    """Limits of a principal, or of all together."""

    principal: Text = ""
    topics: Filters = ()
    connections: int = field(default=0, metadata=within("connections", 0, 1_000_000))
    requests_per_s: int = field(default=0, metadata=within("requests", 0, _MANY))
    bytes_per_s: Size = field(default=0, metadata=bytes_within(0, TIB))
    stored_bytes: Size = field(default=0, metadata=bytes_within(0, 1_024 * TIB))
    shards: int = field(default=0, metadata=within("shards", 0, 100_000_000))
    producers: int = field(default=0, metadata=within("producers", 0, 100_000_000))
    memory_bytes: Size = field(default=0, metadata=bytes_within(0, 16 * TIB))
    http_requests_per_s: int = field(default=0, metadata=within("requests", 0, _MANY))
    cursors: int = field(default=0, metadata=within("cursors", 0, 100_000_000))


def access_problems(
    listen: Mapping[str, str], tls: TlsSection, access: AccessSection, quotas: Sequence[QuotaTable]
) -> Iterable[str]:
    """Problems of settings that are valid one by one but not together.

    Args:
        listen: Addresses by the name of their setting.
        tls: The section of certificates.
        access: The section of access.
        quotas: The tables of quotas.
    """
    if bool(tls.certificate_file) != bool(tls.key_file):
        yield "[tls] certificate_file and key_file belong together; give both or neither"
    if tls.client_ca_file and not tls.certificate_file:
        yield f"[tls] client_ca_file = {tls.client_ca_file!r} needs certificate_file and key_file"
    if not (asks_for_credentials(access, tls) or access.allow_insecure):
        for name, address in listen.items():
            if not is_loopback(address):
                yield (
                    f"[listen] {name} = {address!r} can be reached by other machines, and authentication is not "
                    f"configured: set access.users_file, access.tokens_file or tls.client_ca_file, or listen on "
                    f"127.0.0.1; access.allow_insecure = true permits it nevertheless"
                )
    files = {
        LoginType.CERTIFICATE: ("tls.client_ca_file", tls.client_ca_file),
        LoginType.TOKENS: ("access.tokens_file", access.tokens_file),
        LoginType.USERS: ("access.users_file", access.users_file),
        LoginType.JWT: ("", ""),
        LoginType.HTTP: ("", ""),
    }
    yield from login_problems(access.logins, files)
    yield from problems_of_roles(
        [role.name for role in access.roles], [(rule.role, rule.principal) for rule in access.rules], "principal"
    )
    for number, rule in enumerate(access.rules, 1):
        yield from _problems_of(rule, f"[[access.rules]] number {number}")
    seen = set()
    for number, quota in enumerate(quotas, 1):
        if quota.principal in seen:
            yield f"[[quotas]] number {number} is for principal {quota.principal!r} again; leave one of them out"
        seen.add(quota.principal)
        if quota.memory_bytes and quota.principal == "*":
            yield (
                f"[[quotas]] number {number} bounds memory_bytes of all principals together; set "
                "storage.memory_budget_bytes for that"
            )
        for name in ("cursors", "http_requests_per_s"):
            if getattr(quota, name) and quota.principal == "*":
                yield f"[[quotas]] number {number} bounds {name} of all principals together; it is for each by itself"
        if (quota.stored_bytes or quota.shards) and not quota.topics:
            yield f"[[quotas]] number {number} bounds shards or stored_bytes; say which shards count with topics"
        if any("%c" in each for each in quota.topics):
            yield f'[[quotas]] number {number} has "%c" in its topics; only "%u" is allowed here'


def problems_of_roles(names: Sequence[str], rules: Iterable[tuple[str, str]], what: str) -> Iterable[str]:
    """Problems of roles and the rules for them.

    Args:
        names: The names of the roles, in their order.
        rules: For each rule the role and the principal that it is for, empty for none.
        what: What has roles, such as "principal".
    """
    rules = list(rules)
    used = {role for role, _ in rules}
    known = ", ".join(map(repr, names)) or "there is none"
    for number, name in enumerate(names, 1):
        place = f"[[access.roles]] number {number}"
        if not name:
            yield f"{place} has no name; give one"
        elif name in names[: number - 1]:
            yield f"{place} is called {name!r} again; put the {what}s of both into one"
        elif name not in used:
            yield f"{place} gives no rights, since no rule is for role {name!r}; add a rule, or leave the role out"
    for number, (role, one) in enumerate(rules, 1):
        place = f"[[access.rules]] number {number}"
        if role and role not in names:
            yield f"{place} is for role {role!r}, which is not in [[access.roles]] ({known}); add it there"
        if role and one:
            yield f"{place} is for role {role!r} and for {what} {one!r}; make two rules of it"


def _problems_of(rule: AccessRuleTable, place: str) -> Iterable[str]:
    if not (rule.topics or rule.groups or rule.cursors):
        yield f"{place} is about nothing; give topics, groups or cursors"
    for field_name, names in (("topics", rule.topics), ("groups", rule.groups), ("cursors", rule.cursors)):
        if any("%c" in each for each in names):
            yield f'{place} has "%c" in its {field_name}; only "%u" is allowed here'
    if (rule.groups or rule.cursors) and not {RuleAction.READ, RuleAction.ALL} & set(rule.actions):
        yield f'{place} names groups or cursors without the action "read", the only one that they have; add it'


def asks_for_credentials(access: AccessSection, tls: TlsSection) -> bool:
    """Whether any login method is configured."""
    return bool(access.users_file or access.tokens_file or tls.client_ca_file or access.logins)


def allows_by_default(access: AccessSection, tls: TlsSection) -> bool:
    """Whether a request is allowed that no rule decides about: only without credentials and without rules."""
    return not (asks_for_credentials(access, tls) or access.rules)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address of ``[listen]``; True for an empty one."""
    place = parse_address(address)
    return place is None or is_loopback_host(place[0])
