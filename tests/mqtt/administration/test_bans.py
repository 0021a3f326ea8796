"""Bans hold at all brokers of a store, at once, for those who are connected, and for what they left behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.changes import Changes, Committed
from broker_adapter.errors import ConnectionLostError
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.bans import Ban, BanKind
from broker_adapter.mqtt.bans.applying import ban_follower
from broker_adapter.mqtt.bans.store import BanNotFoundError, TooManyBansError, add_ban, read_bans, remove_ban
from broker_adapter.mqtt.bans.stored import BANS_FOLLOWERS, BANS_SHARD
from broker_adapter.mqtt.rules.followers import wait_followed
from broker_adapter.mqtt.session import SessionSettings
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Will
from journal.access.audit import AuditLog
from shards.seams.clock import SystemClock
from tests.mqtt.serving import Serving, serving
from tests.patience import PATIENCE_S

LASTING = Properties(session_expiry_interval=3600)
USER, CLIENT, NETWORK = BanKind.USER, BanKind.CLIENT, BanKind.NETWORK
SECOND_US = 1_000_000


def now_us() -> int:
    return SystemClock().now_us()


@attrs.frozen
class Banning:
    """Two brokers that follow the bans of their store."""

    store: StorageAdapter
    one: Serving
    other: Serving

    async def ban(self, kind: BanKind, name: str, *, lasts_s: int = 0, reason: str = "", max_bans: int = 10) -> None:
        now = now_us()
        ban = Ban(kind, name, now + lasts_s * SECOND_US if lasts_s else 0, reason, now, "anna")
        await self._holds(await add_ban(self.store, ban, now_us=now, max_bans=max_bans))

    async def unban(self, kind: BanKind, name: str) -> None:
        await self._holds(await remove_ban(self.store, kind, name, by="anna", now_us=now_us()))

    async def _holds(self, version: int) -> None:
        assert not await wait_followed(self.store, version, timeout_s=PATIENCE_S, prefix=BANS_FOLLOWERS)


@asynccontextmanager
async def banning(audit: BrokerAudit | None = None, **options: Any) -> AsyncIterator[Banning]:
    async with (
        open_adapter("memory:") as store,
        serving(store, broker_id="a", audit=audit, **options) as one,
        serving(store, broker_id="b", **options) as other,
        background_tasks() as tasks,
    ):
        for name, served, log in (("a", one, audit), ("b", other, None)):
            broker = served.broker
            await tasks.start(ban_follower(store, name, broker.bans, broker.follow_bans, log or BrokerAudit()).run)
        yield Banning(store, one, other)


async def connack_of(served: Serving, client_id: str, version: Version, user: str, peer: str) -> ReasonCode:
    return (await served.dial(version, peer).connect(client_id, username=user)).reason_code


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize(
    ("kind", "name"), [(USER, "mallory"), (CLIENT, "c"), (NETWORK, "192.0.2.0/24"), (NETWORK, "192.0.2.7/32")]
)
async def test_a_client_is_disconnected_and_refused_at_every_broker_until_the_ban_is_removed(
    version: Version, kind: BanKind, name: str
) -> None:
    refused = ReasonCode.BANNED if version is Version.V5 else ReasonCode.NOT_AUTHORIZED
    async with banning() as there:
        client = await there.other.client("c", version, peer="192.0.2.7:5000", username="mallory")
        bystander = await there.other.client("d", version, peer="192.0.3.7:5000", username="bob")
        await there.ban(kind, name)
        await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
        assert there.other.broker.statistics.ended["banned"] == 1
        for served in (there.one, there.other):
            assert await connack_of(served, "c", version, "mallory", "192.0.2.7:5001") == refused
            assert served.broker.statistics.refused["banned"] == 1
        await bystander.silent()
        await there.unban(kind, name)
        again = await there.one.client("c", version, peer="192.0.2.7:5000", username="mallory")
        await again.leave()
        await bystander.leave()


async def test_a_ban_with_an_end_ends_by_itself_and_gives_its_place_back() -> None:
    async with banning() as there:
        await there.ban(CLIENT, "c", lasts_s=1, max_bans=1)
        assert await connack_of(there.one, "c", Version.V5, "", "test") == ReasonCode.BANNED
        with pytest.raises(TooManyBansError, match=r"there are 1 bans, and access.max_bans is 1"):
            await there.ban(CLIENT, "d", max_bans=1)
        with trio.fail_after(PATIENCE_S):
            while await connack_of(there.one, "c", Version.V5, "", "test") == ReasonCode.BANNED:
                await trio.sleep(0.02)
        await there.ban(CLIENT, "d", max_bans=1)
        assert list((await read_bans(there.store)).bans) == [(CLIENT, "d")], "it was removed with the next change"
        with pytest.raises(BanNotFoundError, match="client 'c' is not banned"):
            await there.unban(CLIENT, "c")


async def test_a_second_ban_of_the_same_replaces_the_first() -> None:
    async with banning() as there:
        await there.ban(USER, "mallory", lasts_s=3600)
        await there.ban(USER, "mallory", reason="again", max_bans=1)
        (ban,) = (await read_bans(there.store)).bans.values()
        assert (ban.until_us, ban.reason) == (0, "again")


@pytest.mark.parametrize(("kind", "name"), [(USER, "mallory"), (CLIENT, "c"), (NETWORK, "192.0.2.0/24")])
@pytest.mark.parametrize("delay_s", [0, 1])
async def test_no_will_of_a_banned_client_is_published(kind: BanKind, name: str, delay_s: int) -> None:
    """Neither that of the connection that ends, nor one that waited for its delay, nor one of a lost connection."""
    async with banning(session_settings=SessionSettings(timer_interval_s=0.05)) as there:
        watcher = await there.one.client("w", username="bob")
        await watcher.subscribe("will/#")
        properties = Properties(will_delay_interval=delay_s)
        client = await there.other.client(
            "c",
            peer="192.0.2.7:1",
            username="mallory",
            will=Will("will/c", b"gone", 1, properties=properties),
            clean_start=False,
            properties=LASTING,
        )
        if delay_s:
            # The will waits in the store when the ban comes.
            await client.stream.aclose()
            with trio.fail_after(PATIENCE_S):
                while there.other.broker.sessions.find("c") is not None:
                    await trio.sleep(0.01)
        await there.ban(kind, name)
        if not delay_s:
            await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
        friend = await there.other.client("f", peer="192.0.3.1:1", username="bob", will=Will("will/f", b"gone", 1))
        await friend.stream.aclose()
        assert (await watcher.message()).topic == "will/f"
        if delay_s:
            with trio.fail_after(PATIENCE_S):
                while not (sum(s.broker.sessions.statistics.fired_count for s in (there.one, there.other))):
                    await trio.sleep(0.02)
        await watcher.silent()
        await watcher.leave()


async def test_a_session_stays_and_is_there_after_the_ban() -> None:
    async with banning() as there:
        client = await there.one.client("c", clean_start=False, properties=LASTING)
        await client.subscribe("t", qos=1)
        await there.ban(CLIENT, "c")
        await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
        publisher = await there.other.client("p")
        await publisher.publish("t", b"1", 1)
        await there.unban(CLIENT, "c")
        again = there.other.dial()
        assert (await again.connect("c", clean_start=False, properties=LASTING)).session_present
        assert (await again.message()).payload == b"1"
        await again.leave()
        await publisher.leave()


async def test_a_ban_that_comes_while_a_client_logs_in_holds_for_it() -> None:
    async with banning() as there:
        open_session = there.one.broker.sessions.open

        async def slow(*arguments: Any, **options: Any) -> Any:
            opened = await open_session(*arguments, **options)
            await there.ban(CLIENT, "c")
            return opened

        there.one.broker.sessions.open = slow  # type: ignore[method-assign]
        client = there.one.dial()
        with pytest.raises(AssertionError, match="Disconnect"):
            await client.connect("c")
        await client.closed()


async def test_changes_at_once_are_all_made() -> None:
    async with banning() as there:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(there.ban, CLIENT, f"c{number}")
        stored = await read_bans(there.store)
        assert (stored.version, len(stored.bans)) == (10, 10)
        assert len(there.one.broker.bans) == len(there.other.broker.bans) == 10
        history = [json.loads(record.value) for record in (await there.store.read(BANS_SHARD, 0)).records]
        assert [each["version"] for each in history] == list(range(1, 11))


async def test_a_change_whose_answer_was_lost_is_made_once() -> None:
    async with open_adapter("memory:") as store:
        commit = store.commit
        lost = 0

        async def losing(changes: Changes) -> Committed:
            nonlocal lost
            committed = await commit(changes)
            lost += 1
            if lost in (1, 2):
                raise ConnectionLostError("the answer was lost")
            return committed

        store.commit = losing  # type: ignore[method-assign]
        ban = Ban(USER, "mallory", 0, "", 5, "anna")
        assert await add_ban(store, ban, now_us=now_us(), max_bans=1, within_s=PATIENCE_S) == 1
        assert await remove_ban(store, USER, "mallory", by="anna", now_us=now_us(), within_s=PATIENCE_S) == 2
        assert (await read_bans(store)).bans == {}


async def test_the_audit_log_says_who_banned_whom_and_why(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    async with banning(BrokerAudit(AuditLog(str(file)))) as there:
        client = await there.one.client("c", username="mallory", peer="192.0.2.7:1")
        await there.ban(USER, "mallory", reason="floods")
        await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
        await connack_of(there.one, "c", Version.V5, "mallory", "192.0.2.7:2")
        await there.unban(USER, "mallory")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [
        (line["act"], line["principal"], line["target"], line["outcome"], line.get("reason", ""))
        for line in lines
        if line["act"] != "login"
    ] == [
        ("ban", "anna", "user mallory", "ok", "floods"),
        ("disconnect", "mallory", "user 'mallory'", "banned", ""),
        ("connect", "mallory", "", "banned", ""),
        ("unban", "anna", "user mallory", "ok", ""),
    ]
