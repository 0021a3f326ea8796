"""Each operation needs what its row in the table of rights says: no less, and nothing else in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest

from journal.access.authorization import Resource
from journal.access.rights import TABLE, Operation, Right
from journal.protocol import Op, messages
from journal.protocol.errors import NotAuthorizedError
from journal.server.security import read
from journal.settings.access import AccessRuleTable
from shards.errors import StorageError
from tests.patience import PATIENCE_S
from tests.server.admin.test_api import admin
from tests.server.admin.test_strangers import basic
from tests.server.people import PASSWORD, guarded, rule, write_people
from tests.server.serving import FILE, RawClient, Served, batch_of, small_config

ADMINISTRATOR: Final = rule("#", "$state/#", "$queue/#", principal="admin")


@attrs.frozen
class Asking:
    """A principal with a connection, and one over HTTP."""

    client: RawClient
    http: httpx.AsyncClient


Deed = Callable[[Asking], Awaitable[object]]


def frame(op: Op, message: object | None = None) -> Deed:
    return lambda asking: asking.client.call(op, message)


def page(path: str, **params: Any) -> Deed:
    """A request over HTTP; raises what the answer says."""

    async def ask(asking: Asking) -> None:
        answer = await asking.http.get(path, params=params)
        if answer.status_code == 403:
            raise NotAuthorizedError(answer.text)
        assert answer.status_code == 200, answer.text

    return ask


def subscribe(**fields: Any) -> Deed:
    return frame(Op.SUBSCRIBE, messages.SubscribeRequest(1, credit_bytes=1000, start="latest", **fields))


async def append(asking: Asking) -> None:
    await asking.client.append(await asking.client.open("s", None), batch_of(b"x"))


async def fetch(asking: Asking) -> None:
    await asking.client.fetch(await asking.client.open("s", None), 0)


async def end_a_client_of_the_administrator(asking: Asking) -> None:
    reply = await asking.client.call(Op.END_CLIENT, messages.EndClientRequest("test"))
    if not reply.connections:
        raise NotAuthorizedError("nothing was ended")


DEEDS: Final[dict[Operation, Deed]] = {
    Operation.SEE_METRICS: page("/../../metrics"),
    Operation.SEE_NODE: frame(Op.STATUS),
    Operation.TAKE_SNAPSHOT: frame(Op.SNAPSHOT),
    Operation.END_ANY_CLIENT: end_a_client_of_the_administrator,
    Operation.LIST_SHARDS: frame(Op.LIST_SHARDS, messages.ListShardsRequest("f/#")),
    Operation.DESCRIBE_SHARD: frame(Op.DESCRIBE_SHARD, messages.NameRequest("s")),
    Operation.OPEN_SHARD: frame(Op.OPEN_SHARD, messages.OpenShardRequest("s")),
    Operation.CREATE_SHARD: frame(Op.CREATE_SHARD, messages.CreateShardRequest("s", exist_ok=True)),
    Operation.CONFIGURE_SHARD: frame(Op.CONFIGURE_SHARD, messages.ConfigureShardRequest("s", segment_bytes=1 << 20)),
    Operation.ROLL_SHARD: frame(Op.ROLL, messages.RollRequest("s")),
    Operation.TRIM_SHARD: frame(Op.TRIM, messages.TrimRequest("s", 0)),
    Operation.APPEND: append,
    Operation.READ: fetch,
    Operation.SUBSCRIBE_SHARD: subscribe(shard="s"),
    Operation.SUBSCRIBE_FILTER: subscribe(filter="f/#"),
    Operation.JOIN_GROUP_ON_SHARD: subscribe(shard="s", group="g"),
    Operation.JOIN_GROUP_ON_FILTER: subscribe(filter="f/#", group="g"),
    Operation.GET_CURSOR: frame(Op.CURSOR_LIST, messages.CursorListRequest("s")),
    Operation.LIST_CURSORS: page("/cursors", filter="f/#"),
    Operation.CHANGE_CURSOR: frame(Op.CURSOR_COMMIT, messages.CursorCommitRequest("s", "c", 0)),
    Operation.GET_STATE: frame(Op.STATE_GET, messages.StateGetRequest(b"k/x")),
    Operation.SCAN_STATE: frame(Op.STATE_SCAN, messages.StateScanRequest(b"k/")),
    Operation.CHANGE_STATE: frame(Op.STATE_PUT, messages.StatePutRequest(b"k/x", b"value")),
    Operation.OPEN_PRODUCER: frame(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("p")),
    Operation.LIST_QUEUES: page("/queues"),
    Operation.DELETE_SHARD: frame(Op.DELETE_SHARD, messages.NameRequest("gone")),
}
MORE_THAN_ONE_ROW: Final = {Operation.CREATE_BY_APPENDING}
"""Its request also needs the rights of another row."""
TOPICS: Final = {
    Resource.SHARD: "s",
    Resource.FILTER: "f/#",
    Resource.PARTIAL_FILTER: "f/#",
    Resource.STATE: "$state/k/x",
    Resource.STATE_PREFIX: "$state/k/#",
    Resource.METRICS: "$metrics",
    Resource.SOMEWHERE: "#",
    Resource.EVERYTHING: "#",
}


def rule_about(right: Right, operation: Operation, *, allow: bool = True) -> AccessRuleTable:
    """A rule about one right, and no other."""
    about: dict[str, Any] = {"principal": "anna", "actions": (right.action,), "allow": allow}
    if right.resource in (Resource.GROUP, Resource.CURSOR):
        return rule(**about, **{f"{right.resource}s": ("g" if right.resource is Resource.GROUP else "c",)})
    topic = TOPICS[right.resource]
    if operation is Operation.LIST_QUEUES:
        topic = "$queue/#"
    return rule("gone" if operation is Operation.DELETE_SHARD else topic, **about)


@attrs.frozen
class Trial:
    """A server, and anna over HTTP; her rights change from one question to the next."""

    served: Served
    http: httpx.AsyncClient
    people: dict[str, Any]

    async def answer(self, operation: Operation, *rules: AccessRuleTable) -> StorageError | None:
        """What anna gets with these rules."""
        self.served.server.take_over(read(small_config(**self.people, access__rules=(ADMINISTRATOR, *rules))))
        await self.served.engine.create_shard("gone", FILE, exist_ok=True)
        async with (
            self.served.client(user="admin", password=PASSWORD),
            self.served.client(user="anna", password=PASSWORD) as client,
        ):
            try:
                await DEEDS[operation](Asking(client, self.http))
            except NotAuthorizedError as error:
                return error
        return None


@asynccontextmanager
async def trial(path: Path) -> AsyncIterator[Trial]:
    async with (
        guarded(path, ADMINISTRATOR) as served,
        admin(served, authorization=basic("anna", PASSWORD)) as http,
    ):
        await prepare(served)
        yield Trial(served, http, write_people(path))


async def prepare(served: Served) -> None:
    async with served.client(user="admin", password=PASSWORD) as client:
        for name in ("s", "f/a"):
            await client.append_values(await client.open(name), b"value")


def test_every_row_with_rights_is_tried() -> None:
    """Those at a broker are tried in tests/mqtt/edges/test_administration.py."""
    here = {operation for operation, row in TABLE.items() if row.ways and not row.broker}
    assert here - MORE_THAN_ONE_ROW == set(DEEDS)


async def test_what_a_row_names_is_enough_and_nothing_less(tmp_path: Path) -> None:
    async with trial(tmp_path) as tried:
        for operation in DEEDS:
            for way in TABLE[operation].ways:
                rules = [rule_about(right, operation) for right in way]
                assert await tried.answer(operation, *rules) is None, (operation, way)
                for at in range(len(rules)):
                    fewer = [*rules[:at], *rules[at + 1 :]]
                    assert await tried.answer(operation, *fewer) is not None, (operation, way[at])


async def test_no_other_right_stands_in_for_those_of_a_row(tmp_path: Path) -> None:
    everything = rule("#", "$state/#", "$queue/#", "$metrics", principal="anna", groups=("#",), cursors=("#",))
    async with trial(tmp_path) as tried:
        for operation in DEEDS:
            rights = {right for way in TABLE[operation].ways for right in way}
            denied = [rule_about(right, operation, allow=False) for right in rights]
            assert await tried.answer(operation, everything) is None, operation
            assert await tried.answer(operation, *denied, everything) is not None, operation


async def test_to_read_a_shard_is_not_enough_to_move_a_cursor_or_to_join_a_group(tmp_path: Path) -> None:
    """It was: any reader could make another group skip records, or take its records away."""
    rules = (
        ADMINISTRATOR,
        rule("s", principal="anna", actions=("read", "subscribe"), groups=("team/%u/#",), cursors=("anna",)),
    )
    join = messages.SubscribeRequest(1, credit_bytes=1000, start="latest", shard="s", group="team/bob/x")
    async with guarded(tmp_path, *rules) as served:
        await prepare(served)
        async with served.client(user="anna", password=PASSWORD) as anna:
            for name in ("bob", "group/team/bob/x", "group/anna", "+", "#"):
                for op, message in (
                    (Op.CURSOR_COMMIT, messages.CursorCommitRequest("s", name, 1)),
                    (Op.CURSOR_DELETE, messages.CursorDeleteRequest("s", name)),
                ):
                    with pytest.raises(NotAuthorizedError, match=r"may not read (cursor|group) .* or administer 's'"):
                        await anna.call(op, message)
            with pytest.raises(NotAuthorizedError, match="may not read group 'team/bob/x' or administer 's'"):
                await anna.call(Op.SUBSCRIBE, join)
            await anna.call(Op.SUBSCRIBE, attrs.evolve(join, group="team/anna/x"))
            for name in ("anna", "group/team/anna/x"):
                await anna.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("s", name, 1))


async def test_a_member_whose_right_to_the_group_is_gone_is_disconnected(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    reader = rule("s", principal="anna", actions=("read", "subscribe"), groups=("g",))
    async with guarded(tmp_path, ADMINISTRATOR, reader) as served:
        await prepare(served)
        async with served.client(user="anna", password=PASSWORD) as anna:
            await subscribe(shard="s", group="g")(Asking(anna, httpx.AsyncClient(timeout=PATIENCE_S)))
            without = rule("s", principal="anna", actions=("read", "subscribe"))
            served.server.take_over(read(small_config(**people, access__rules=(ADMINISTRATOR, without))))
            assert (await anna.receive_until_closed())[-1].status


async def test_who_may_only_append_creates_the_shard_that_is_appended_to(tmp_path: Path) -> None:
    appender = rule("new", principal="anna", actions=("append",))
    async with (
        guarded(tmp_path, ADMINISTRATOR, appender) as served,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        with pytest.raises(NotAuthorizedError, match="may not append or read 's'"):
            await anna.open("s", FILE)
        await anna.open("new", FILE)
