"""Every JSON operation is refused to clients without credentials, and to users without the right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from journal.server.json_protocol import messages
from journal.server.security import read
from journal.settings.access import QuotaTable
from tests.patience import PATIENCE_S
from tests.server.json_protocol.talking import RefusedError, talking
from tests.server.people import EXPIRED_TOKEN, PASSWORD, TOKEN, guarded, rule, write_people
from tests.server.serving import Served, serving, small_config

RULES: Final = (
    rule("elsewhere/#", principal="anna"),
    rule("plant/#", principal="bob", actions=("append",)),
    rule("#", principal="admin"),
    rule("#", principal="robot", actions=("read", "subscribe")),
)
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "list": {"filter": "plant/#"},
    "describe": {"shard": "plant/1"},
    "append": {"shard": "plant/1", "records": [{"value": "x"}]},
    "read": {"shard": "plant/1"},
    "tail": {"tail": 1, "filter": "plant/#"},
}
OWN: Final = {"hello", "ping", "credit", "untail"}
"""What every client may do after its login: it touches nothing but what belongs to the connection."""


def test_the_table_has_every_operation() -> None:
    assert {*REQUESTS, *OWN} == set(messages.OPERATIONS)


@asynccontextmanager
async def plant(path: Path, **changes: Any) -> AsyncIterator[Served]:
    async with guarded(path, *RULES, **changes) as served:
        async with talking(served, user="admin", password=PASSWORD) as admin:
            await admin.append("plant/1", "secret", create={})
        yield served
        assert served.engine.parts.table.by_name("plant/1").published_offset == 1


@pytest.mark.parametrize(
    "credentials",
    [
        None,
        {"user": "anna", "password": "guess"},
        {"user": "eve", "password": PASSWORD},
        {"user": "admin"},
        {"token": EXPIRED_TOKEN},
        {"token": "guess"},
        {"certificate": "admin"},
    ],
)
async def test_who_cannot_show_who_it_is_may_do_nothing(tmp_path: Path, credentials: dict[str, str] | None) -> None:
    async with plant(tmp_path) as served:
        for op, fields in REQUESTS.items():
            async with talking(served, greet=False) as stranger:
                await stranger.send({"id": 1, "op": "hello", "credentials": credentials})
                # What follows at once must not be carried out before hello was looked at.
                await stranger.send({"id": 2, "op": op, **fields})
                (answer,) = await stranger.receive_until_closed()
                assert (answer["id"], answer["error"]["code"]) == (1, "authentication_failed")


@pytest.mark.parametrize("op", REQUESTS)
async def test_who_may_something_elsewhere_may_nothing_here(tmp_path: Path, op: str) -> None:
    async with plant(tmp_path) as served, talking(served, user="anna", password=PASSWORD) as anna:
        with pytest.raises(RefusedError, match="'anna' may not") as caught:
            await anna.call(op, **REQUESTS[op])
        assert caught.value.code == "not_authorized"
        assert "secret" not in str(caught.value)
        await anna.append("elsewhere/1", "mine", create={})


async def test_each_right_is_asked_for_by_itself(tmp_path: Path) -> None:
    async with plant(tmp_path) as served, talking(served, token=TOKEN) as robot:
        assert (await robot.call("read", shard="plant/1"))["records"][0]["value"] == "secret"
        assert (await robot.call("tail", tail=1, shard="plant/1"))["tail"] == 1
        with pytest.raises(RefusedError, match="may not append"):
            await robot.append("plant/1", "x")
        with pytest.raises(RefusedError, match="may not append"):
            await robot.append("plant/2", "x", create={})
        async with talking(served, user="bob", password=PASSWORD) as bob:
            assert (await bob.append("plant/2", "x", create={}))["base_offset"] == 0
            with pytest.raises(RefusedError, match="may not read"):
                await bob.call("read", shard="plant/2")


async def test_a_tail_ends_with_the_right_to_it_and_a_connection_with_its_credentials(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        serving(tmp_path, **people) as served,
        talking(served, user="bob", password=PASSWORD) as bob,
        talking(served, token=TOKEN) as robot,
    ):
        await bob.call("tail", tail=1, filter="#")
        served.server.take_over(read(small_config(**people, access__rules=(rule("x"),))))
        assert (await bob.receive_until_closed())[-1]["error"]["code"] == "not_authorized"
        assert await robot.call("ping") == {}
        Path(people["access__tokens_file"]).write_text("")
        served.server.take_over(read(small_config(**people)))
        assert (await robot.receive_until_closed())[-1]["error"]["code"] == "authentication_failed"


async def test_quotas_hold_for_connections_shards_and_what_is_stored(tmp_path: Path) -> None:
    quota = QuotaTable(principal="bob", topics=("plant/#",), connections=1, shards=2, stored_bytes=100_000)
    async with plant(tmp_path, quotas=(quota,)) as served, talking(served, user="bob", password=PASSWORD) as bob:
        async with talking(served, greet=False) as second:
            with pytest.raises(RefusedError, match=r"quotas\.connections") as caught:
                await second.call("hello", credentials={"user": "bob", "password": PASSWORD})
        assert caught.value.retriable
        await bob.append("plant/2", "x" * 200_000, create={})
        with pytest.raises(RefusedError, match=r"quotas\.shards"):
            await bob.append("plant/3", "x", create={})
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await bob.append("plant/2", "x")
                except RefusedError as error:
                    assert error.code == "quota_exceeded"
                    assert "quotas.stored_bytes" in str(error)
                    break
        async with talking(served, user="admin", password=PASSWORD) as admin:
            await admin.append("plant/4", "others are unharmed", create={})
