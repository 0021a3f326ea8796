"""A server for many examples, its clients, and what an administrator finds in it."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest

from broker_adapter import StorageAdapter, open_adapter
from journal.access import refused_acts
from journal.access.tokens import TokenHash
from journal.protocol import Op, messages
from journal.server.security import read
from journal.settings.access import AccessRuleTable, RoleTable, RuleAction
from journal.settings.values import Permission
from shards.model import ShardConfig
from tests.patience import PATIENCE_S
from tests.rights.deeds import ADMIN, BASE, KEYS, ROLES, SHARDS, USERS
from tests.rights.model import Model, Rule
from tests.server.json_protocol.talking import Talker, talking
from tests.server.serving import RawClient, Served, batch_of, serving, small_config
from tests.server.test_websocket_and_http import websocket_client

SUBSCRIPTIONS: Final = 1_000
INDEXED: Final = ShardConfig(index_keys=True, index_tags=True)
QUEUE_STATE: Final = b"queue/bridge1"


def token_of(who: str) -> str:
    """The token of a principal."""
    return f"token-of-{who.encode().hex()}"


def record_in(shard: str) -> str:
    """The content of the first record of a shard, which occurs nowhere else."""
    return f"record<{SHARDS.index(shard)}>"


def value_of(key: bytes) -> str:
    """The content of a state key, likewise."""
    return f"state<{KEYS.index(key)}>"


def _table(rule: Rule) -> AccessRuleTable:
    return AccessRuleTable(
        Permission.ALLOW if rule.allow else Permission.DENY,
        rule.topics,
        tuple(RuleAction(each) for each in sorted(rule.actions)),
        "" if rule.who in ROLES else rule.who,
        groups=rule.groups,
        cursors=rule.cursors,
        role=rule.who if rule.who in ROLES else "",
    )


@attrs.define
class Live:
    """One connection of frames, and what it has opened.

    Attributes:
        handles: By shard name.
        subscriptions: Number and what it needs, as a request.
    """

    client: RawClient
    handles: dict[str, int] = attrs.Factory(dict)
    subscriptions: dict[int, Any] = attrs.Factory(dict)
    next_subscription: int = 1


@attrs.define
class Scene:
    """A server, and the present example on it.

    Attributes:
        model: The rights in force.
        joined_groups: Cursors of groups that have had members: their positions are stored some time later.
        frames: Connections of frames by principal and transport.
        talkers: Those of JSON by principal.
    """

    path: Path
    served: Served
    http: httpx.AsyncClient
    settings: dict[str, Any]
    audit: Path
    stack: AsyncExitStack = attrs.Factory(AsyncExitStack)
    model: Model = attrs.field(factory=lambda: Model((), ROLES))
    frames: dict[tuple[str, str], Live] = attrs.Factory(dict)
    talkers: dict[str, Talker] = attrs.Factory(dict)
    talker_subscriptions: dict[str, dict[int, Any]] = attrs.Factory(dict)
    adapters: dict[str, StorageAdapter] = attrs.Factory(dict)
    joined_groups: set[str] = attrs.Factory(set)
    audited_bytes: int = 0

    def obey(self, rules: tuple[Rule, ...]) -> None:
        """Put rules in force, as SIGHUP does."""
        rules = (BASE, *rules)
        self.model = Model(rules, ROLES)
        changed = {**self.settings, "access__rules": tuple(map(_table, rules))}
        self.served.server.take_over(read(small_config(**changed)))

    async def prepare(self, shards: tuple[str, ...]) -> None:
        """Delete everything, and store what the example begins with."""
        engine = self.served.engine
        for shard in self.shards():
            await engine.delete_shard(shard)
        while (found := await engine.scan_state(b"", None, 1000, 1 << 20))[0]:
            for value in found[0]:
                await engine.delete_state(value.key, None)
        async with self.served.client(token=token_of(ADMIN)) as admin:
            for shard in shards:
                handle = await admin.open(shard, INDEXED)
                await admin.append(handle, batch_of(record_in(shard).encode()))
                for cursor in ("pos", "group/billing"):
                    await admin.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest(shard, cursor, 0))
            for key in KEYS:
                await admin.call(Op.STATE_PUT, messages.StatePutRequest(key, value_of(key).encode()))

    def shards(self) -> list[str]:
        """The shards that exist."""
        return [each for each in SHARDS if self.served.engine.shard_id(each) is not None]

    def digest(self) -> object:
        """What is stored: equal before and after whatever changes nothing."""
        engine = self.served.engine
        found: list[object] = []
        for name in self.shards():
            info = engine.describe_shard(name, with_segments=False)
            cursors = [
                (each.name, each.offset, each.version)
                for each in engine.list_cursors(name)
                if each.name not in self.joined_groups
            ]
            found.append((name, info.start_offset, info.next_offset, info.config, cursors))
        return found

    async def states(self) -> object:
        """The state store's part of it."""
        values, _ = await self.served.engine.scan_state(b"", None, 1000, 1 << 20)
        return [(each.key, each.version) for each in values]

    def new_audit_lines(self) -> list[dict[str, Any]]:
        """Lines since the last call."""
        with self.audit.open("rb") as file:
            file.seek(self.audited_bytes)
            text = file.read()
        self.audited_bytes += len(text)
        return [json.loads(line) for line in text.splitlines()]

    # Clients

    async def live(self, who: str, way: str) -> Live:
        """The connection of frames of a principal, by TCP or WebSocket."""
        found = self.frames.get((who, way))
        if found is None:
            if way == "frames":
                client = await self.stack.enter_async_context(self.served.client(**self.credentials(who)))
            else:
                client = await self.stack.enter_async_context(
                    websocket_client(self.served, greet=False, messages_ahead=10_000)
                )
                await client.hello(**self.credentials(who))
            found = self.frames[who, way] = Live(client)
        return found

    async def talker(self, who: str) -> Talker:
        """Its connection of JSON."""
        found = self.talkers.get(who)
        if found is None:
            found = await self.stack.enter_async_context(talking(self.served, **self.credentials(who)))
            self.talkers[who] = found
            self.talker_subscriptions[who] = {}
        return found

    async def adapter(self, who: str) -> StorageAdapter:
        """Its adapter."""
        found = self.adapters.get(who)
        if found is None:
            found = self.adapters[who] = await self.stack.enter_async_context(open_adapter(self.url(who)))
        return found

    def credentials(self, who: str) -> dict[str, str]:
        """What it logs in with."""
        return {"token": token_of(who)} if who else {}

    def headers(self, who: str) -> dict[str, str]:
        """The same over HTTP."""
        return {"Authorization": f"Bearer {token_of(who)}"} if who else {}

    def url(self, who: str) -> str:
        """The same for commands and the adapter."""
        where = f"journal://{self.served.address}"
        return f"{where}?token_file={self.path}/{who.encode().hex()}.token" if who else where

    @asynccontextmanager
    async def example(self) -> AsyncIterator[None]:
        """Connections last until the example ends."""
        async with AsyncExitStack() as self.stack:
            self.joined_groups = set()
            self.frames, self.talkers, self.adapters, self.talker_subscriptions = {}, {}, {}, {}
            yield


@asynccontextmanager
async def scene(path: Path) -> AsyncIterator[Scene]:
    """A server with the users of the examples."""
    tokens = path / "tokens"
    lines = []
    for who in (ADMIN, *USERS[:-1]):
        lines.append(TokenHash.of(who, token_of(who)).format())
        file = path / f"{who.encode().hex()}.token"
        file.write_text(token_of(who) + "\n")
        file.chmod(0o600)
    tokens.write_text("\n".join(lines) + "\n")
    audit = path / "audit.jsonl"
    settings: dict[str, Any] = {
        "access__tokens_file": str(tokens),
        "access__anonymous": True,
        "access__audit_file": str(audit),
        "access__roles": tuple(RoleTable(name, members) for name, members in ROLES.items()),
        "access__rules": (_table(BASE),),
    }
    with pytest.MonkeyPatch.context() as patch:
        # Every refusal has to be found in the audit log.
        for limit in ("LINES_PER_PRINCIPAL", "LINES_PER_PERIOD"):
            patch.setattr(refused_acts, limit, 1_000_000)
        async with _served(path, settings, audit) as on:
            yield on


@asynccontextmanager
async def _served(path: Path, settings: dict[str, Any], audit: Path) -> AsyncIterator[Scene]:
    async with (
        serving(path, within_s=math.inf, **settings) as served,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.ports['http']}", timeout=PATIENCE_S) as http,
    ):
        yield Scene(path, served, http, settings, audit)
