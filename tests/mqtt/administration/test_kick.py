"""A client is disconnected at whichever broker it is, and its session ends if that is wanted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.clients.kick import Kicked, KickResult, NoBrokerError, kick
from broker_adapter.mqtt.clients.listing import ClientInfo, clients_of
from broker_adapter.mqtt.session.peer_channel import CONTROL_SHARD, PeerMessage, message_of
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Will
from broker_adapter.state_forms import encode
from journal.access.audit import AuditLog
from tests.mqtt.serving import Serving, serving
from tests.patience import PATIENCE_S

LASTING = Properties(session_expiry_interval=3600)


@asynccontextmanager
async def two(**options: Any) -> AsyncIterator[tuple[StorageAdapter, Serving, Serving]]:
    """Two brokers on one store."""
    async with (
        open_adapter("memory:") as store,
        serving(store, broker_id="a", **options) as one,
        serving(store, broker_id="b", **options) as other,
    ):
        yield store, one, other


async def ids(store: StorageAdapter) -> list[str]:
    return [client.client_id async for client in clients_of(store)]


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize("end_session", [False, True])
async def test_a_client_is_disconnected_at_the_broker_where_it_is(version: Version, end_session: bool) -> None:
    async with two() as (store, _one, other):
        lasts: dict[str, Any] = {"clean_start": False}
        if version is Version.V5:
            lasts["properties"] = LASTING
        client = await other.client("c", version, **lasts)
        bystander = await other.client("d", version)
        await client.subscribe("t", qos=1)
        assert (await kick(store, "c", by="anna", end_session=end_session)) == KickResult(
            Kicked.ENDED if end_session else Kicked.DISCONNECTED, "b"
        )
        await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
        assert other.broker.statistics.ended["kicked"] == 1
        assert ("c" in await ids(store)) is not end_session
        again = other.dial(version)
        assert (await again.connect("c", **lasts)).session_present is not end_session
        await bystander.silent()
        await bystander.leave()
        await again.leave()


async def test_the_will_of_a_client_is_published_when_it_is_disconnected() -> None:
    async with two() as (store, one, other):
        watcher = await one.client("w")
        await watcher.subscribe("will")
        client = await other.client("c", will=Will("will", b"gone", 1))
        await kick(store, "c", by="anna")
        assert (await watcher.message()).payload == b"gone"
        await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
        await watcher.leave()


async def test_the_session_of_a_client_that_is_away_ends_with_its_will() -> None:
    async with two() as (store, one, other):
        watcher = await one.client("w")
        await watcher.subscribe("will")
        late = Will("will", b"gone", 1, properties=Properties(will_delay_interval=3000))
        client = await other.client("c", clean_start=False, properties=LASTING, will=late)
        await client.subscribe("t", qos=1)
        await client.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while (await kick(store, "c", by="anna")).outcome is not Kicked.AWAY:
                await trio.sleep(0.01)
        assert "c" in await ids(store)
        ended = await kick(store, "c", by="anna", end_session=True)
        assert ended.outcome is Kicked.ENDED
        assert (await watcher.message()).payload == b"gone"
        assert "c" not in await ids(store)
        assert (await kick(store, "c", by="anna", end_session=True)).outcome is Kicked.UNKNOWN
        await watcher.leave()


async def test_what_cannot_be_done_is_said() -> None:
    async with open_adapter("memory:") as store:
        assert await kick(store, "c", by="anna") == KickResult(Kicked.UNKNOWN)
        async with serving(store, broker_id="a") as one:
            client = await one.client("c", clean_start=False, properties=LASTING)
            await client.stream.aclose()
        with pytest.raises(NoBrokerError, match="no broker runs"):
            await kick(store, "c", by="anna", end_session=True)
        async with serving(store, broker_id="a") as one:
            client = await one.client("c")
            # The session names a broker that is frozen: it does not answer.
            one.broker.sessions._peer_channel._broker_id = "frozen"
            assert await kick(store, "c", by="anna", timeout_s=0.1) == KickResult(Kicked.UNANSWERED, "a")
            await client.leave()


async def test_a_client_that_moves_meanwhile_is_followed() -> None:
    async with two() as (store, one, other):
        client = await one.client("c", clean_start=False, properties=LASTING)
        give_up = one.broker.sessions._peer_channel._kick

        async def moved_before(message: PeerMessage) -> str:
            nonlocal client
            client = await other.client("c", clean_start=False, properties=LASTING)
            return await give_up(message)

        one.broker.sessions._peer_channel._kick = moved_before
        assert await kick(store, "c", by="anna") == KickResult(Kicked.DISCONNECTED, "b")
        await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)


async def test_the_audit_log_says_who_disconnected_whom(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    async with open_adapter("memory:") as store, serving(store, audit=BrokerAudit(AuditLog(str(file)))) as one:
        client = await one.client("c")
        await kick(store, "c", by="anna@office")
        await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        (line,) = [line for line in lines if line["act"] == "kick"]
        assert (line["principal"], line["client"], line["target"]) == ("anna@office", "c", "test")


async def test_clients_are_listed_with_their_brokers() -> None:
    async with two() as (store, one, other):
        first = await one.client("a", username="anna")
        second = await other.client("b", clean_start=False, properties=LASTING)
        await second.subscribe("t", "u", qos=1)
        await second.leave()
        found = [client async for client in clients_of(store)]
        assert found[0] == ClientInfo("a", "anna", "a", "", 0, 0)
        assert (found[1].client_id, found[1].broker, found[1].subscription_count) == ("b", "", 2)
        assert found[1].expires_at_us
        assert [client.client_id async for client in clients_of(store, after="a")] == ["b"]
        await first.leave()


async def test_a_broker_of_an_earlier_version_reads_the_messages_that_it_knows() -> None:
    """The fields of kicks are behind those that every version has."""
    assert message_of(encode(PeerMessage("yield", "a", "b", "c", 1)))
    known = PeerMessage("yielded", "a", "b", "c", 1)
    assert encode(known)[1:][:1] == b"\x98", "eight fields, the first five as they were"
    assert CONTROL_SHARD == "$mqtt/control"
