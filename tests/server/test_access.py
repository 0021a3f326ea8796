"""What changes while a server runs: users, rules and certificates; what is recorded; what quotas do to whom."""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock
from trio_websocket import ConnectionClosed, wrap_client_stream

from journal.access import quotas
from journal.access.refused_acts import LINES_PER_PRINCIPAL
from journal.access.tokens import TokenHash
from journal.access.users import Cost, PasswordHash, Users, write_user
from journal.client import open_client
from journal.net.output import Output
from journal.protocol import Op, decode_error, encode, frames, messages
from journal.protocol.errors import AuthenticationError, NotAuthorizedError, QuotaExceededError, RemoteProtocolError
from journal.server import cursor_quotas, login, stored_quotas
from journal.server.security import read
from journal.settings.access import QuotaTable, RoleTable
from journal.settings.server import ServerConfig
from shards.back_off import BackOff
from shards.errors import StorageError
from shards.model import Mode
from tests.patience import PATIENCE_S
from tests.server.admin.test_api import admin
from tests.server.admin.test_strangers import basic
from tests.server.json_protocol.talking import RefusedError, talking
from tests.server.people import PASSWORD, TOKEN, guarded, rule, write_people
from tests.server.serving import MEMORY, RawClient, Served, batch_of, serving, small_config


def take_over(served: Served, config: ServerConfig) -> None:
    """What SIGHUP does."""
    served.server.take_over(read(config))


async def told_at_the_end(client: RawClient) -> Exception:
    """Why the server closed the connection."""
    last = (await client.receive_until_closed())[-1]
    return decode_error(last.status, last.body)


async def test_whose_password_changed_must_come_again_and_others_stay(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        serving(tmp_path, **people) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
        served.client(token=TOKEN) as robot,
    ):
        handle = await bob.open("x")
        write_user(people["access__users_file"], "anna", PasswordHash.of(b"changed", Cost(2, 1, 1)))
        take_over(served, small_config(**people))
        assert isinstance(await told_at_the_end(anna), AuthenticationError)
        await bob.append_values(handle, b"value")
        await robot.call(Op.PING)
        with pytest.raises(AuthenticationError):
            async with served.client(user="anna", password=PASSWORD):
                pass
        async with served.client(user="anna", password="changed"):
            pass
        Path(people["access__tokens_file"]).write_text("")
        take_over(served, small_config(**people))
        assert isinstance(await told_at_the_end(robot), AuthenticationError)


async def test_changed_rules_hold_for_handles_and_subscriptions_that_are_open(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        serving(tmp_path, **people) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        handle = await anna.open("x")
        await anna.append_values(handle, b"value")
        subscription = messages.SubscribeRequest(1, credit_bytes=1 << 20, start="latest", filter="#")
        await bob.call(Op.SUBSCRIBE, subscription)
        take_over(served, small_config(**people, access__rules=(rule("x", actions=("read",)),)))
        assert isinstance(await told_at_the_end(bob), NotAuthorizedError)
        with pytest.raises(NotAuthorizedError, match="may not append 'x'"):
            await anna.append_values(handle, b"value")
        assert await anna.read_values(handle) == [b"value"]
        take_over(served, small_config(**people, access__rules=(rule("x", actions=("append",)),)))
        await anna.append_values(handle, b"again")
        with pytest.raises(NotAuthorizedError, match="may not read"):
            await anna.fetch(handle, 0)


async def test_who_came_in_unasked_leaves_when_credentials_are_asked_for(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with serving(tmp_path) as served, served.client() as stranger:
        take_over(served, small_config(**people))
        assert isinstance(await told_at_the_end(stranger), AuthenticationError)


async def test_a_connection_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people = write_people(tmp_path)
    expires_at_s = float(int(time.time()) + 3600)
    Path(people["access__tokens_file"]).write_text(TokenHash.of("robot", TOKEN, expires_at_s).format())
    # The clock by which connections end stands still, so that the token lives for as long as the login takes.
    now_s = [expires_at_s - 0.05]
    monkeypatch.setattr(login, "time", SimpleNamespace(time=lambda: now_s[0]))
    async with serving(tmp_path, **people) as served, served.client(token=TOKEN) as robot:
        await robot.call(Op.PING)
        now_s[0] = expires_at_s
        error = await told_at_the_end(robot)
        assert isinstance(error, AuthenticationError)
        assert "expired" in str(error)


async def test_administrative_acts_are_recorded_with_who_and_what_came_of_it(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    rules = (rule("#", principal="admin"), rule("x", actions=("append",)))
    async with guarded(tmp_path, *rules, access__audit_file=str(audit)) as served:
        async with served.client(user="admin", password=PASSWORD) as admin:
            await admin.call(Op.CREATE_SHARD, messages.CreateShardRequest("x"))
            await admin.append_values(await admin.open("x"), b"value")
            await admin.call(Op.SET_MODE, messages.SetModeRequest("x", Mode.FILE))
            await admin.call(Op.TRIM, messages.TrimRequest("x", 1))
            await admin.call(Op.SNAPSHOT)
        async with served.client(user="anna", password=PASSWORD) as anna:
            with pytest.raises(NotAuthorizedError):
                await anna.call(Op.DELETE_SHARD, messages.NameRequest("x"))
        with pytest.raises(AuthenticationError):
            async with served.client(user="admin", password="guess"):
                pass
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["principal"], line["act"], line["target"], line["outcome"]) for line in lines] == [
        ("admin", "login", "", "ok"),
        ("admin", "create_shard", "x", "ok"),
        ("admin", "set_mode", "x", "ok"),
        ("admin", "trim", "x", "ok"),
        ("admin", "snapshot", "", "ok"),
        ("anna", "login", "", "ok"),
        ("anna", "delete_shard", "x", "not_authorized"),
        ("", "login", "admin", "authentication_failed"),
    ]
    assert all(line["peer"].startswith("127.0.0.1:") and line["time_us"] > 1_700_000_000_000_000 for line in lines)
    assert PASSWORD not in audit.read_text()


async def test_the_end_of_connections_of_another_principal_is_recorded(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with (
        guarded(tmp_path, rule("#", principal="admin"), access__audit_file=str(audit)) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="admin", password=PASSWORD),
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        assert (await anna.call(Op.END_CLIENT, messages.EndClientRequest("test"))).connections == 0
        assert (await admin.call(Op.END_CLIENT, messages.EndClientRequest("test"))).connections == 2
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["principal"], line["target"]) for line in lines if line["act"] == "end_client"] == [("admin", "anna")]


async def test_a_token_ends_by_the_clock_also_when_that_runs_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was suspended, or its clock was set: what sleeps does not notice."""
    monkeypatch.setattr(login, "_LOOKED_AT_EVERY_S", 0.05)
    people = write_people(tmp_path)
    Path(people["access__tokens_file"]).write_text(TokenHash.of("robot", TOKEN, time.time() + 3600).format())
    async with serving(tmp_path, **people) as served, served.client(token=TOKEN) as robot:
        await robot.call(Op.PING)
        really = time.time
        monkeypatch.setattr(login, "time", SimpleNamespace(time=lambda: really() + 3601))
        assert "expired" in str(await told_at_the_end(robot))


@pytest.mark.parametrize("body", [b"\x81\xa1x" + b"\x91" * 5000 + b"\xc0", b"\x81\xa4name\xa1\xff", b"\xc1"])
async def test_an_act_whose_target_cannot_be_read_is_refused_and_recorded_as_well(tmp_path: Path, body: bytes) -> None:
    audit = tmp_path / "audit.jsonl"
    async with serving(tmp_path, access__audit_file=str(audit)) as served, served.client() as client:
        correlation = client.next_correlation()
        await client.send(frames.build(Op.DELETE_SHARD, correlation, body))
        with pytest.raises(RemoteProtocolError, match="DELETE_SHARD request"):
            await client.reply_to(Op.DELETE_SHARD, correlation)
        await client.call(Op.PING)
    line = json.loads(audit.read_text())
    assert (line["act"], line["target"], line["outcome"]) == ("delete_shard", "", "protocol_error")


async def test_a_request_cannot_name_another_shard_in_the_audit_log(tmp_path: Path) -> None:
    """A field that the operation does not have, ``shard``, stood before the one by which it is carried out."""
    audit = tmp_path / "audit.jsonl"
    async with serving(tmp_path, access__audit_file=str(audit)) as served, served.client() as client:
        await client.call(Op.CREATE_SHARD, messages.CreateShardRequest("real"))
        correlation = client.next_correlation()
        body = msgspec.msgpack.encode({"name": "real", "shard": "another"})
        await client.send(frames.build(Op.DELETE_SHARD, correlation, body))
        await client.reply_to(Op.DELETE_SHARD, correlation)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["act"], line["target"]) for line in lines] == [("create_shard", "real"), ("delete_shard", "real")]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Op.CURSOR_COMMIT, messages.CursorCommitRequest("x" * 100_000, "c" * 100_000, 0)),
        (Op.DELETE_SHARD, messages.NameRequest("x" * 100_000)),
    ],
)
async def test_a_name_that_is_too_long_is_cut_in_the_audit_log(tmp_path: Path, op: Op, message: object) -> None:
    audit = tmp_path / "audit.jsonl"
    async with serving(tmp_path, access__audit_file=str(audit)) as served, served.client() as client:
        with pytest.raises(StorageError):
            await client.call(op, message)
        assert sum(map(len, audit.read_text().splitlines())) < 3_000


async def test_commits_of_a_cursor_and_logins_are_recorded_once_and_then_counted(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with guarded(tmp_path, access__audit_file=str(audit)) as served:
        for _ in range(3):
            async with served.client(user="anna", password=PASSWORD) as anna:
                await anna.open("x")
                await anna.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("x", "c", 0))
        served.server.guard.repeated_acts.tell(also_unfinished=True)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [
        (line["principal"], line["act"], line["target"], line.get("cursor"), line.get("left_out")) for line in lines
    ] == [
        ("anna", "login", "", None, None),
        ("anna", "cursor_commit", "x", "c", None),
        ("anna", "login", "", None, 2),
        ("anna", "cursor_commit", "x", "c", 2),
    ]


async def test_what_is_refused_for_lack_of_rights_is_recorded_whatever_the_way_in(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    rules = (rule("#", principal="admin"), rule("x", principal="anna", actions=("read", "subscribe")))
    batch = messages.ShardBatch("x", batch_of(b"value"))
    async with (
        guarded(tmp_path, *rules, access__audit_file=str(audit)) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        talking(served, user="anna", password=PASSWORD) as talker,
        admin(served, authorization=basic("anna", PASSWORD)) as http,
    ):
        async with served.client(user="admin", password=PASSWORD) as administrator:
            await administrator.open("x")
        before = len(audit.read_text().splitlines())
        subscribe = messages.SubscribeRequest(1, credit_bytes=1, start="latest", shard="x", group="team")
        for op, message in (
            (Op.LIST_SHARDS, messages.ListShardsRequest("#")),
            (Op.SUBSCRIBE, subscribe),
            (Op.STATE_GET, messages.StateGetRequest(b"key")),
            (Op.COMMIT, messages.CommitRequest(appends=[batch])),
        ):
            with pytest.raises(NotAuthorizedError):
                await anna.call(op, message)
        with pytest.raises(NotAuthorizedError):
            await anna.append_values(await anna.open("x", None), b"value")
        with pytest.raises(RefusedError):
            await talker.append("x", "value")
        assert (await http.get("/shards")).status_code == 403
        lines = [json.loads(line) for line in audit.read_text().splitlines()[before:]]
    told = [(line["act"], line["target"], line.get("group")) for line in lines]
    assert told == [
        ("list_shards", "#", None),
        ("subscribe", "x", "team"),
        ("state_get", "$state/key", None),
        ("commit", "x", None),
        ("append", "x", None),
        ("append", "x", None),
        ("list_shards", "#", None),
    ]
    assert {(line["principal"], line["outcome"]) for line in lines} == {("anna", "not_authorized")}


async def test_who_may_do_nothing_does_not_fill_the_disk_with_the_audit_log(tmp_path: Path) -> None:
    """Each refused DELETE_SHARD wrote a line, as many as the network carried."""
    audit = tmp_path / "audit.jsonl"
    async with guarded(tmp_path, rule("#", principal="admin"), access__audit_file=str(audit)) as served:
        async with served.client(user="anna", password=PASSWORD) as anna:
            for number in range(100):
                with pytest.raises(NotAuthorizedError):
                    await anna.call(Op.DELETE_SHARD, messages.NameRequest(f"shard {number}"))
        served.server.guard.refused_acts.tell(also_unfinished=True)
    lines = [json.loads(line) for line in audit.read_text().splitlines()][1:]
    assert [line["target"] for line in lines[:-1]] == [f"shard {number}" for number in range(LINES_PER_PRINCIPAL)]
    last = lines[-1]
    assert (last["principal"], last["act"], last["left_out"]) == ("anna", "refused", 100 - LINES_PER_PRINCIPAL)


async def test_a_moved_audit_log_begins_anew_and_loses_nothing(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with serving(tmp_path, access__audit_file=str(audit)) as served, served.client() as client:
        await client.call(Op.CREATE_SHARD, messages.CreateShardRequest("a"))
        audit.rename(tmp_path / "old")
        await client.call(Op.CREATE_SHARD, messages.CreateShardRequest("b"))
        served.server.guard.audit.reopen()
        await client.call(Op.CREATE_SHARD, messages.CreateShardRequest("c"))
    assert [json.loads(line)["target"] for line in (tmp_path / "old").read_text().splitlines()] == ["a", "b"]
    assert json.loads(audit.read_text())["target"] == "c"


async def test_a_role_gives_its_rules_to_each_of_its_principals(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    roles = (RoleTable("readers", ("anna", "bob")), RoleTable("own", ("anna",)))
    rules = (
        attrs.evolve(rule("closed", allow=False), role="own"),
        attrs.evolve(rule("#", actions=("read",)), role="readers"),
        attrs.evolve(rule("of/%u/#"), role="own"),
        rule("#", principal="admin"),
    )
    async with serving(tmp_path, **people, access__roles=roles, access__rules=rules) as served:
        async with served.client(user="admin", password=PASSWORD) as client:
            await client.open("closed")
        async with served.client(user="anna", password=PASSWORD) as anna:
            await anna.open("of/anna/x")
            for name in ("closed", "of/bob/x"):
                with pytest.raises(NotAuthorizedError):
                    await anna.open(name)
        async with served.client(user="bob", password=PASSWORD) as bob:
            await bob.open("closed", None)
            with pytest.raises(NotAuthorizedError):
                await bob.open("of/bob/x")
        # The rules of a role end for a user who is removed from it.
        fewer = (RoleTable("readers", ("anna",)), roles[1])
        async with served.client(user="bob", password=PASSWORD) as bob:
            take_over(served, small_config(**people, access__roles=fewer, access__rules=rules))
            with pytest.raises(NotAuthorizedError):
                await bob.open("closed", None)


# Quotas


async def test_anybody_could_open_any_number_of_producers(tmp_path: Path) -> None:
    """PRODUCER_OPEN needed no right and counted on no quota, and each name stayed for ever."""
    rules = (
        rule("plant/#", principal="anna", actions=("append",)),
        rule("#", principal="bob", actions=("read",)),
        rule("#", principal="admin"),
    )
    quotas = (QuotaTable(producers=2), QuotaTable("*", producers=3))
    async with guarded(tmp_path, *rules, quotas=quotas) as served:
        async with served.client(user="bob", password=PASSWORD) as bob:
            with pytest.raises(NotAuthorizedError, match="may not append to any topic"):
                await bob.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("p"))
        async with (
            served.client(user="anna", password=PASSWORD) as anna,
            served.client(user="admin", password=PASSWORD) as admin,
        ):
            first = await anna.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("one"))
            await anna.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("two"))
            with pytest.raises(QuotaExceededError, match=r"'anna' have 2 producers, and quotas.producers allows 2"):
                await anna.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("three"))
            again = await anna.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("one"))
            assert (again.producer_id, again.epoch) == (first.producer_id, 2)
            await admin.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("one"))
            with pytest.raises(QuotaExceededError, match=r"all principals together have 3 producers"):
                await admin.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("two"))


async def test_one_tenant_does_not_use_up_the_memory_of_all(tmp_path: Path) -> None:
    """Who could append created shards in memory mode until every append to memory was refused."""
    rules = (rule("t/%u/#", actions=("append",)), rule("#", principal="admin"))
    async with (
        guarded(tmp_path, *rules, quotas=(QuotaTable("bob", memory_bytes=2 << 20),)) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
        served.client(user="admin", password=PASSWORD) as admin,
        talking(served, user="anna", password=PASSWORD) as talker,
    ):

        async def fill(client: RawClient, name: str) -> int:
            """Append until it is refused; returns what the memory holds of it."""
            before = held()
            for number in range(100):
                handle = await client.open(f"t/{name}/{number}", MEMORY)
                try:
                    await client.append(handle, batch_of(b"x" * 500_000))
                except QuotaExceededError as error:
                    assert f"of principal '{name}', whose share is" in str(error)
                    return held() - before
            raise AssertionError("nothing was refused")

        def held() -> int:
            return served.engine.statistics().memory_bytes

        budget = served.engine.config.storage.memory_budget_bytes
        assert budget // 4 <= await fill(anna, "anna") < budget // 4 + (1 << 20)
        assert 2 << 20 <= await fill(bob, "bob") < 3 << 20
        with pytest.raises(RefusedError, match="quota_exceeded"):
            await talker.append("t/anna/json", "x", create={"mode": "memory"})
        batch = messages.ShardBatch("t/anna/0", batch_of(b"x"))
        with pytest.raises(QuotaExceededError):
            await anna.call(Op.COMMIT, messages.CommitRequest(appends=[batch]))
        await anna.append_values(await anna.open("t/anna/file"), b"a shard in file mode is not affected")
        for number in range(12):
            await admin.append(await admin.open(f"own/{number}", MEMORY), batch_of(b"x" * 500_000))
        for number in range(10):
            await admin.call(Op.DELETE_SHARD, messages.NameRequest(f"t/anna/{number}"))
        await anna.append(await anna.open("t/anna/again", MEMORY), batch_of(b"x" * 500_000))


async def test_a_principal_without_a_quota_has_a_bounded_number_of_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "DEFAULT_PRODUCERS", 2)
    rules = (rule("x", principal="anna", actions=("append",)), rule("#", principal="admin"))
    async with (
        guarded(tmp_path, *rules) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="admin", password=PASSWORD) as admin,
    ):
        for name in ("one", "two", "two"):
            await anna.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest(name))
        with pytest.raises(QuotaExceededError, match="has 2 producers, and without quotas"):
            await anna.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("three"))
        for name in ("one", "two", "three"):
            await admin.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest(name))


def committed(name: str, shard: str = "x") -> messages.CursorCommitRequest:
    return messages.CursorCommitRequest(shard, name, 0)


async def test_cursors_beyond_the_quota_are_refused_until_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who could read a shard could create cursors of it without end."""
    monkeypatch.setattr(cursor_quotas, "_SHORTEST_PAUSE_S", 0.0)
    monkeypatch.setattr(cursor_quotas, "_LARGEST_SHARE", 0)
    rules = (rule("#", actions=("read",), cursors=("#",)), rule("#", principal="admin"))
    quotas = (QuotaTable("anna", cursors=2),)
    async with (
        guarded(tmp_path, rules[1], rules[0], quotas=quotas) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        for shard in ("x", "y"):
            await admin.open(shard)
        for name in ("of admin", "another", "a third"):
            await admin.call(Op.CURSOR_COMMIT, committed(name))
        for name in ("1", "2", "1", "of admin"):
            await anna.call(Op.CURSOR_COMMIT, committed(name))
        with pytest.raises(QuotaExceededError, match=r"'anna' has created 2 .*quotas\.cursors allows 2; delete some"):
            await anna.call(Op.CURSOR_COMMIT, committed("3"))
        assert [each.name for each in served.engine.list_cursors("x")] == ["1", "2", "a third", "another", "of admin"]
        await bob.call(Op.CURSOR_COMMIT, committed("3"))
        await anna.call(Op.CURSOR_COMMIT, committed("3"))
        await anna.call(Op.CURSOR_DELETE, messages.CursorDeleteRequest("x", "1"))
        await anna.call(Op.CURSOR_COMMIT, committed("4", "y"))
        with pytest.raises(QuotaExceededError):
            await anna.call(Op.CURSOR_COMMIT, committed("5", "y"))
        await admin.call(Op.DELETE_SHARD, messages.NameRequest("y"))
        await anna.call(Op.CURSOR_COMMIT, committed("5"))


@pytest.mark.parametrize("target", [{"shard": "x"}, {"filter": "#"}], ids=str)
async def test_positions_of_groups_count_and_a_group_that_has_some_can_be_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any]
) -> None:
    monkeypatch.setattr(quotas, "DEFAULT_CURSORS", 2)
    monkeypatch.setattr(cursor_quotas, "_SHORTEST_PAUSE_S", 0.0)
    monkeypatch.setattr(cursor_quotas, "_LARGEST_SHARE", 0)
    numbers = itertools.count(1)

    async def join(client: RawClient, group: str) -> None:
        number = next(numbers)
        await client.call(
            Op.SUBSCRIBE,
            messages.SubscribeRequest(number, credit_bytes=1000, start="earliest", group=group, **target),
        )
        with trio.fail_after(PATIENCE_S):
            while served.engine.get_cursor("x", f"group/{group}") is None:
                await trio.sleep(0.01)
        await client.call(Op.UNSUBSCRIBE, messages.UnsubscribeRequest(number))

    rules = (rule("#", principal="admin"), rule("#", actions=("read", "subscribe"), groups=("#",)))
    async with (
        guarded(tmp_path, *rules) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        await admin.open("x")
        for group in ("of admin", "another", "a third"):
            await join(admin, group)
        for group in ("1", "2", "of admin" if target.get("shard") else "1", "1"):
            await join(anna, group)
        with pytest.raises(QuotaExceededError, match=r"quotas\.cursors allows 2"):
            await join(anna, "3")
        await join(anna, "another")
        await admin.call(Op.CURSOR_DELETE, messages.CursorDeleteRequest("x", "group/1"))
        await join(anna, "3")


async def test_a_principal_at_its_limit_of_cursors_does_not_make_the_server_look_at_all_of_them_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    exists = cursor_quotas.CursorQuotas._exists

    async def counting(self: cursor_quotas.CursorQuotas, wanted: cursor_quotas._Created) -> bool:
        nonlocal looked_at
        looked_at += 1
        return await exists(self, wanted)

    monkeypatch.setattr(cursor_quotas, "_SHORTEST_PAUSE_S", 1000.0)
    rules = (rule("#", principal="admin"), rule("#", actions=("read",), cursors=("#",)))
    async with (
        guarded(tmp_path, *rules, quotas=(QuotaTable("anna", cursors=50),)) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        await admin.open("x")
        for number in range(50):
            await anna.call(Op.CURSOR_COMMIT, committed(str(number)))
        monkeypatch.setattr(cursor_quotas.CursorQuotas, "_exists", counting)
        for number in range(50, 60):
            with pytest.raises(QuotaExceededError):
                await anna.call(Op.CURSOR_COMMIT, committed(str(number)))
    assert looked_at < 100


async def test_connections_beyond_the_quota_are_refused_and_a_place_that_was_left_is_free(tmp_path: Path) -> None:
    async with guarded(tmp_path, quotas=(QuotaTable(connections=2),)) as served:
        async with served.client(user="anna", password=PASSWORD) as first:
            async with served.client(user="anna", password=PASSWORD):
                with pytest.raises(QuotaExceededError, match=r"quotas.connections allows 2"):
                    async with served.client(user="anna", password=PASSWORD):
                        pass
                async with served.client(user="bob", password=PASSWORD):
                    pass
            with trio.fail_after(PATIENCE_S):
                while True:
                    try:
                        async with served.client(user="anna", password=PASSWORD):
                            break
                    except QuotaExceededError:
                        await trio.sleep(0.01)
            await first.call(Op.PING)


async def test_a_client_that_is_gone_before_its_password_was_checked_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = trio.Event(), threading.Event()
    really, wait_drained = Users.check, Output.wait_drained

    def check(users: Users, name: str, password: bytes) -> bool:
        trio.from_thread.run_sync(begun.set)
        assert goes_on.wait(PATIENCE_S)
        return really(users, name, password)

    async def drained_behind_the_check(output: Output) -> None:
        # The connection must not have ended before the check has begun: it would not begin any more.
        await begun.wait()
        await wait_drained(output)

    monkeypatch.setattr(Users, "check", check)
    monkeypatch.setattr(Output, "wait_drained", drained_behind_the_check)
    async with guarded(tmp_path, quotas=(QuotaTable(connections=1),)) as served:
        credentials = {"user": "anna", "password": PASSWORD}
        greeting = frames.build(
            Op.HELLO, 1, encode(messages.HelloRequest(frames.PROTOCOL_VERSION, "test", credentials))
        )
        no_frame = bytes(12)
        async with (
            await trio.open_tcp_stream("127.0.0.1", served.ports["websocket"]) as stream,
            trio.open_nursery() as nursery,
        ):
            websocket = await wrap_client_stream(nursery, stream, "127.0.0.1", "/")
            await websocket.send_message(greeting + no_frame)
            with trio.fail_after(PATIENCE_S):
                await begun.wait()
                # The client has got the answer. Only the check is waited for, which cannot be stopped.
                await websocket.get_message()
                await trio.testing.wait_all_tasks_blocked()
                goes_on.set()
                with suppress(ConnectionClosed):
                    while True:
                        await websocket.get_message()
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections:
                await trio.sleep(0.01)
        async with served.client(user="anna", password=PASSWORD):
            pass


async def test_a_client_beyond_the_quota_comes_again_until_there_is_a_place(tmp_path: Path) -> None:
    async with guarded(tmp_path, quotas=(QuotaTable(connections=1),)) as served, trio.open_nursery() as nursery:
        connected = trio.Event()

        async def come() -> None:
            credentials = {"user": "anna", "password": PASSWORD}
            async with open_client(served.address, credentials=credentials, backoff=BackOff(0.05, 0.1)):
                connected.set()

        async with served.client(user="anna", password=PASSWORD):
            nursery.start_soon(come)
            with trio.move_on_after(0.3):
                await connected.wait()
            assert not connected.is_set()
        with trio.fail_after(PATIENCE_S):
            await connected.wait()


async def test_shards_beyond_the_quota_are_refused_also_many_at_once(tmp_path: Path) -> None:
    quota = QuotaTable(topics=("of/%u/#",), shards=3)
    async with (
        guarded(tmp_path, quotas=(quota,)) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        requests = [
            anna.start(Op.CREATE_SHARD, messages.CreateShardRequest(f"of/anna/{number}")) for number in range(10)
        ]
        await anna.send(*(frame for _, frame in requests))
        made = []
        for correlation, _ in requests:
            try:
                made.append((await anna.reply_to(Op.CREATE_SHARD, correlation)).name)
            except QuotaExceededError:
                continue
        assert len(made) == 3
        with pytest.raises(QuotaExceededError, match=r"quotas.shards allows 3"):
            await anna.open("of/anna/x")
        await anna.open(made[0])
        await anna.open("elsewhere")
        await bob.open("of/bob/0")


async def test_the_place_of_a_deleted_shard_is_free_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_quotas, "_INTERVAL_S", 3600)
    quota = QuotaTable(topics=("of/%u/#",), shards=2)
    async with guarded(tmp_path, quotas=(quota,)) as served, served.client(user="anna", password=PASSWORD) as anna:
        await anna.open("of/anna/kept")
        for number in range(20):
            await anna.open(f"of/anna/{number}")
            with pytest.raises(QuotaExceededError):
                await anna.open("of/anna/more")
            await anna.call(Op.DELETE_SHARD, messages.NameRequest(f"of/anna/{number}"))


async def test_bytes_beyond_the_quota_are_refused_until_there_is_room_and_others_are_not(tmp_path: Path) -> None:
    quota = QuotaTable(topics=("of/%u/#",), stored_bytes=100_000)
    async with (
        guarded(tmp_path, quotas=(quota,)) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        handle, other = await anna.open("of/anna/x"), await bob.open("of/bob/x")
        with (
            trio.fail_after(PATIENCE_S),
            pytest.raises(QuotaExceededError, match=r"quotas.stored_bytes"),
        ):
            while True:
                await anna.append(handle, batch_of(b"x" * 20_000))
                await trio.sleep(0.05)
        assert (await anna.fetch(handle, 0)).batches
        await bob.append_values(other, b"value")
        await anna.call(Op.DELETE_SHARD, messages.NameRequest("of/anna/x"))
        handle = await anna.open("of/anna/y")
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await anna.append_values(handle, b"value")
                    break
                except QuotaExceededError:
                    await trio.sleep(0.05)


async def test_only_a_client_over_its_rate_waits(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 1.0
    quotas = (QuotaTable("anna", bytes_per_s=200_000), QuotaTable("bob", requests_per_s=1_000_000))
    async with (
        guarded(tmp_path, quotas=quotas) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        handle, other = await anna.open("x"), await bob.open("y")
        started = trio.current_time()
        for _ in range(5):
            await anna.append(handle, batch_of(b"x" * 100_000))
        # A burst of 200,000 is free; the last of the rest is paid for after its answer.
        assert trio.current_time() - started > 0.9
        # No time passes for the other one, who would wait for ever.
        mock_clock.rate = 0.0
        for _ in range(20):
            await bob.append(other, batch_of(b"x" * 100_000))
        mock_clock.rate = 1.0
        started = trio.current_time()
        for _ in range(3):
            await anna.fetch(handle, 0, max_bytes=100_000)
        assert trio.current_time() - started > 0.5, "what is read counts, too"


async def test_who_was_not_let_in_is_recorded_and_counted_whichever_way_it_came(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with guarded(tmp_path, access__audit_file=str(audit)) as served:
        for credentials in ({"user": "anna", "password": "guess"}, {"token": "guess"}, {"user": "typed-password"}, {}):
            with pytest.raises(AuthenticationError):
                async with served.client(**credentials):
                    pass
            async with talking(served, greet=False) as talker:
                with pytest.raises(RefusedError, match="authentication_failed"):
                    await talker.call("hello", client="test", credentials=credentials or None)
        async with admin(served) as client:
            for header in ({}, {"authorization": "Bearer guess"}, {"authorization": "Nonsense"}):
                assert (await client.get("/shards", headers=header)).status_code == 401
        assert served.server.statistics.errors == {"authentication_failed": 11}
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["act"], line["target"], line["outcome"]) for line in lines] == [
        ("login", "anna" if at < 2 else "", "authentication_failed") for at in range(10)
    ]
    assert all(line["peer"].startswith("127.0.0.1:") for line in lines)
    assert "guess" not in audit.read_text()
    assert "typed-password" not in audit.read_text()
