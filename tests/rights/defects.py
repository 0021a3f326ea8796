"""Defects of access put back into the server. The generator must name each of them.

Most of them were in it once, or in other servers. A defect replaces a piece of the product while it is in force.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import attrs
import pytest

from journal.access import refused_acts, rights, rules
from journal.access.authorization import Action, Principal, Resource
from journal.access.rights import TABLE, Operation, Right, Row, Use
from journal.access.rules import Permissions
from journal.engine import Engine
from journal.server import login, operations, read_operations, security, shard_operations, state_operations
from journal.server.connection import Connection
from journal.server.json_protocol import operations as json_operations
from journal.server.login import Login
from journal.server.observers import Observers
from journal.server.shard_operations import ShardOperations
from shards.topics.topic_filters import matches

Patch = pytest.MonkeyPatch


@attrs.frozen
class Defect:
    """One defect.

    Attributes:
        name: What the server does with it.
        put: Puts it into the server.
        named: What the generator must say of it, as a regular expression.
        kinds: The kinds of requests that are tried, where it shows rarely among all; empty for all.
    """

    name: str
    put: Callable[[Patch], None]
    named: str
    kinds: tuple[str, ...] = ()


DEFECTS: Final[list[Defect]] = []


def _defect(name: str, named: str, *kinds: str) -> Callable[[Callable[[Patch], None]], None]:
    def note(put: Callable[[Patch], None]) -> None:
        DEFECTS.append(Defect(name, put, named, kinds))

    return note


def _skip(patch: Patch, module: ModuleType, operation: Operation) -> None:
    """Leave out the check of an operation in one module."""

    class Unchecked(Use):
        def require(self, principal: Principal) -> None:
            """Allow everything."""

    def use(wanted: Operation, **names: Any) -> Use:
        return (Unchecked if wanted is operation else Use)(wanted, **names)

    patch.setattr(module, "Use", use)


def _skips(module: ModuleType, operation: Operation, named: str) -> None:
    name = f"does not check the right to {operation} in {module.__name__.removeprefix('journal.server.')}"
    DEFECTS.append(Defect(name, lambda patch: _skip(patch, module, operation), named))


_skips(json_operations, Operation.READ, "way='json', kind='read'.*carried out, but is denied")
_skips(json_operations, Operation.APPEND, "way='json', kind='append'.*is denied")
_skips(state_operations, Operation.GET_STATE, "kind='state'.*carried out, but is denied")
_skips(state_operations, Operation.SCAN_STATE, "kind='states'.*carried out, but is denied")
_skips(state_operations, Operation.CHANGE_STATE, "kind='(put state|delete state|commit)'.*is denied")
_skips(state_operations, Operation.OPEN_PRODUCER, "kind='open producer'.*carried out, but is denied")
_skips(shard_operations, Operation.LIST_CURSORS, "kind='cursors of filter'.*carried out, but is denied")
_skips(shard_operations, Operation.CHANGE_CURSOR, "kind='delete cursor'.*is denied")
_skips(shard_operations, Operation.TRIM_SHARD, "kind='trim'.*is denied")
_skips(operations, Operation.SEE_NODE, "kind='node'.*carried out, but is denied")


@_defect("lets a handle for appends be read", "kind='(read|find offset|read by key)'.*carried out, but is denied")
def _(patch: Patch) -> None:
    granted = Connection._grant

    def grant(self: Connection, handle: int) -> None:
        granted(self, handle)
        self.readable[handle] = self.readable[handle] or self.handles[handle]

    patch.setattr(Connection, "_grant", grant)
    _skip(patch, read_operations, Operation.READ)


@_defect("keeps the rights of open handles at SIGHUP", "kind='(append|read|find offset|read by key)'")
def _(patch: Patch) -> None:
    patch.setattr(Connection, "grant_again", lambda self: None)


@_defect("keeps subscriptions at SIGHUP", "was pushed a record|keeps ")
def _(patch: Patch) -> None:
    def renew(self: Login, connection: Any) -> None:
        connection.renew(self._guard.access.renewed(connection.principal))

    patch.setattr(Login, "renew", renew)


@_defect("pushes denied shards to a filter", "kind='(subscribe|join) filter'.*shows|was pushed a record")
def _(patch: Patch) -> None:
    for module in ("journal.server.login", "journal.server.pushing"):
        patch.setattr(f"{module}.shards_delivered", lambda use, principal: None)


@_defect("takes a filter for the name of a shard", "carried out, but is denied")
def _(patch: Patch) -> None:
    patch.setattr(Permissions, "may", Permissions.may_topic)


@_defect("looks a group up among the topics", "kind='(join|join filter|set cursor|delete cursor)'")
def _(patch: Patch) -> None:
    target = Use._target

    def confused(self: Use, resource: Resource) -> tuple[Resource, str]:
        kind, name = target(self, resource)
        return (Resource.SHARD if kind is Resource.GROUP else kind), name

    patch.setattr(Use, "_target", confused)


@_defect("lets readers move and delete cursors", "kind='(set|delete) cursor'.*is denied")
def _(patch: Patch) -> None:
    row = TABLE[Operation.CHANGE_CURSOR]
    way = (Right(Action.READ, Resource.SHARD),)
    patch.setitem(TABLE, Operation.CHANGE_CURSOR, attrs.evolve(row, ways=(*row.ways, way)))


@_defect("takes the position of a group for a cursor like others", "cursor='group/", "set cursor", "delete cursor")
def _(patch: Patch) -> None:
    patch.setattr(rights, "group_of_cursor", lambda name: None)


@_defect("creates shards for who may only read", "kind='open'.*is denied", "open")
def _(patch: Patch) -> None:
    patch.setitem(TABLE, Operation.CREATE_BY_APPENDING, Row(Operation.CREATE_BY_APPENDING))


@_defect("looks for a shard before it checks the right to it", "is denied, but was answered with")
def _(patch: Patch) -> None:
    describe = ShardOperations.describe

    def looking(self: ShardOperations, requester: Any, name: str) -> Any:
        self._engine.describe_shard(name, with_segments=False)
        return describe(self, requester, name)

    patch.setattr(ShardOperations, "describe", looking)


@_defect("lists shards that the filter does not match", "kind='list'.*shows the name")
def _(patch: Patch) -> None:
    scan = Engine.scan_names
    patch.setattr(Engine, "scan_names", lambda self, topic_filter, after: scan(self, "+/#", after))


@_defect("ends connections of others for all", "kind='end another'.*carried out, but is denied")
def _(patch: Patch) -> None:
    patch.setitem(TABLE, Operation.END_ANY_CLIENT, Row(Operation.END_ANY_CLIENT))


@_defect("shows metrics to all", "kind='metrics'.*carried out, but is denied")
def _(patch: Patch) -> None:
    async def refusal(self: Observers, request: object) -> None:
        return None

    patch.setattr(Observers, "refusal", refusal)


@_defect("names another shard in the audit log", "the audit log has")
def _(patch: Patch) -> None:
    patch.setattr(login, "_target_of", lambda op, body: login._Target("another"))


@_defect("names nobody in the audit log", "the audit log has")
def _(patch: Patch) -> None:
    write = refused_acts.RefusedActs.write
    patch.setattr(refused_acts.RefusedActs, "write", lambda self, entry: write(self, attrs.evolve(entry, principal="")))


@_defect("leaves refused requests out of the audit log", "the audit log has")
def _(patch: Patch) -> None:
    patch.setattr(Login, "note_refused", lambda self, connection, act, error: None)


@_defect("gives a user called + what belongs to all", r"who='(\+|a/b)'")
def _(patch: Patch) -> None:
    patch.setattr(rules, "_UNFIT", rules.re.compile(r"\Z."))


@_defect("lets an allowing rule win over a denying one before it", "carried out, but is denied|shows|pushed")
def _(patch: Patch) -> None:
    def decide(self: Permissions, ruled: list[tuple[bool, tuple[str, ...]]], target: str, *, of_one: bool) -> bool:
        return decided(self, sorted(ruled, key=lambda rule: not rule[0]), target, of_one=of_one)

    decided = Permissions._decide
    patch.setattr(Permissions, "_decide", decide)


@_defect("gives names that begin with $ to a rule for #", r"carried out, but is denied|shows|pushed")
def _(patch: Patch) -> None:
    patch.setattr(rules, "matches", lambda pattern, name: matches(pattern, name.replace("$", "_")))


@_defect("gives the rules of a role to all", "is denied|is allowed|shows|pushed")
def _(patch: Patch) -> None:
    rule = security._rule
    patch.setattr(security, "_rule", lambda table, principal: rule(table, "" if table.role else principal))
